"""Clients of `api`: raw keep-alive connections, so that little of the two cores goes to the side that asks."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import BenchError

TIMEOUT_S = 20.0


class Connection:
    """One keep-alive connection to a server on loopback."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left = b""

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """(status, body) of one request. BenchError when the server closes."""
        self._socket.sendall(request)
        data = self._left
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._more()
        head, body = data[:end].lower(), data[end + 4 :]
        at = head.find(b"content-length:")
        if at < 0:
            raise BenchError(f"an answer without a length: {head[:200]!r}")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0])
        while len(body) < length:
            body += self._more()
        self._left = body[length:]
        return int(head[9:12]), body[:length]

    def _more(self) -> bytes:
        data = self._socket.recv(65536)
        if not data:
            raise BenchError("the server closed a connection")
        return data

    def close(self) -> None:
        self._socket.close()


def post(body: Any, key: str | None = None) -> bytes:
    """The bytes of `POST /jobs`."""
    data = json.dumps(body).encode()
    extra = f"Idempotency-Key: {key}\r\n" if key else ""
    return (
        f"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{extra}"
        f"Content-Length: {len(data)}\r\n\r\n"
    ).encode() + data


def get(id: str) -> bytes:
    return f"GET /jobs/{id} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


@dataclass
class Answers:
    """What came back: seconds from when a request was due to its answer, the ids, and what was not as wanted."""

    took_s: list[float] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)

    def add(self, took_s: float, status: int, wanted: int, body: bytes) -> None:
        self.took_s.append(took_s)
        if status != wanted:
            self.odd.append(f"{status}: {body[:200]!r}")
        else:
            self.ids.append(str(json.loads(body)["id"]))


def closed(port: int, make: Callable[[int], bytes], wanted: int, clients: int, seconds: float) -> tuple[float, Answers]:
    """``clients`` that each ask again when they have an answer, for ``seconds``: (answers per second, answers)."""
    parts = [Answers() for _ in range(clients)]
    counts = [0] * clients
    begun = time.perf_counter()

    def work(n: int) -> None:
        connection = Connection(port)
        try:
            at = time.perf_counter()
            while at - begun < seconds:
                status, body = connection.ask(make(n + clients * counts[n]))
                now = time.perf_counter()
                parts[n].add(now - at, status, wanted, body)
                counts[n] += 1
                at = now
        finally:
            connection.close()

    _threads([lambda n=n: work(n) for n in range(clients)])  # type: ignore[misc]
    return sum(counts) / (time.perf_counter() - begun), _joined(parts)


def paced(port: int, make: Callable[[int], bytes], wanted: int, rate: float, seconds: float, clients: int) -> Answers:
    """Requests that are due ``rate`` times a second whatever the server does (open loop), over ``clients`` connections.

    A request that finds no free connection waits, and its wait counts: it was due.
    """
    parts = [Answers() for _ in range(clients)]
    total = int(rate * seconds)
    turn = iter(range(total))
    lock = threading.Lock()
    begun = time.perf_counter() + 0.5

    def work(n: int) -> None:
        connection = Connection(port)
        try:
            while True:
                with lock:
                    number = next(turn, None)
                if number is None:
                    return
                due = begun + number / rate
                time.sleep(max(0.0, due - time.perf_counter()))
                status, body = connection.ask(make(number))
                parts[n].add(time.perf_counter() - due, status, wanted, body)
        finally:
            connection.close()

    _threads([lambda n=n: work(n) for n in range(clients)])  # type: ignore[misc]
    return _joined(parts)


def _threads(works: Sequence[Callable[[], None]]) -> None:
    failed: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise BenchError(f"a client failed: {type(failed[0]).__name__}: {failed[0]}")


def _joined(parts: Sequence[Answers]) -> Answers:
    return Answers(
        [x for part in parts for x in part.took_s],
        [x for part in parts for x in part.ids],
        [x for part in parts for x in part.odd],
    )
