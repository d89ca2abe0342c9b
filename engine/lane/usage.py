"""What one executor and everything it started use: memory, and bytes read or written. Read by the GPU probe's process.

Bytes are a counter of files and pipes (/proc/PID/io, page faults on mapped files included) and of TCP sockets
(``sock_diag``; a ``recv`` shows nowhere else). They are life. CPU time is not: a process that waits for CUDA may spin.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from engine.lane import tree

MIB = 1024 * 1024
_IO = (b"rchar", b"wchar", b"read_bytes", b"write_bytes")
_PAGE = os.sysconf("SC_PAGE_SIZE")

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, linux/tcp.h
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _DUMP = 4, 20, 0x301
_DONE, _ERROR, _INFO = 3, 2, 2
_INODE_AT, _MESSAGE_LEN, _BYTES_AT = 68, 72, 120


@dataclass(frozen=True)
class Use:
    """``pids``: the processes. None: not known."""

    pids: frozenset[int]
    host_mb: float | None
    io_bytes: float | None


def processes() -> dict[int, tree.Stat]:
    """Every process there is now."""
    found = {int(name): tree.stat_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return {pid: stat for pid, stat in found.items() if stat is not None and not stat.over}


def members(table: Mapping[int, tree.Stat], target: tree.Target) -> frozenset[int]:
    """The executor and what descends from it; it is a subreaper, so that its orphans do, too."""
    if target.pid not in table:
        return frozenset()
    children: dict[int, list[int]] = {}
    for pid, stat in table.items():
        children.setdefault(stat.parent, []).append(pid)
    todo = [target.pid]
    found: set[int] = set()
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, ())
    return frozenset(found)


class Meter:
    """Reads the use of executors, again and again: counters go up though processes come and go."""

    def __init__(self, lane: int) -> None:
        self._lane = lane
        self._seen: dict[str, dict[object, float]] = {}  # cookie -> what was counted -> how far it had come
        self._sums: dict[str, float] = {}

    def read(self, targets: Collection[tree.Target]) -> dict[str, Use]:
        """The use of each, by cookie."""
        table = processes()
        sockets = tcp_bytes() if targets else {}
        self._forget({target.cookie for target in targets})
        return {target.cookie: self._one(table, target, sockets) for target in targets}

    def _one(self, table: Mapping[int, tree.Stat], target: tree.Target, sockets: Mapping[int, float] | None) -> Use:
        pids = members(table, target)
        if not pids:
            return Use(pids, None, None)
        now = counters(table, pids, sockets)
        if now is not None:
            before = self._seen.get(target.cookie, {})
            rise = sum(max(0.0, count - before.get(what, 0.0)) for what, count in now.items())
            self._sums[target.cookie] = self._sums.get(target.cookie, 0.0) + rise
            self._seen[target.cookie] = now
        host = cgroup_mb(target.pid, self._lane)
        return Use(
            pids,
            resident_mb(pids) if host is None else host,
            None if now is None else self._sums[target.cookie],
        )

    def _forget(self, cookies: Collection[str]) -> None:
        for known in [cookie for cookie in self._seen if cookie not in cookies]:
            del self._seen[known], self._sums[known]


def counters(
    table: Mapping[int, tree.Stat], pids: Collection[int], sockets: Mapping[int, float] | None
) -> dict[object, float] | None:
    """Bytes by process and by TCP socket; None when one of them cannot be told."""
    if sockets is None:
        return None
    found: dict[object, float] = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/io", "rb") as file:
                lines = dict(line.split(b": ") for line in file.read().splitlines())
            found[pid, table[pid].started] = float(sum(int(lines[name]) for name in _IO))
            for inode in _sockets_of(pid):
                if inode in sockets:
                    found["socket", inode] = sockets[inode]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except (OSError, KeyError, ValueError):
            return None
    return found


def _sockets_of(pid: int) -> set[int]:
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue  # closed since
        if link.startswith("socket:["):
            found.add(int(link[8:-1]))
    return found


def resident_mb(pids: Collection[int]) -> float | None:
    """Resident memory of processes, in MiB; None when none can be read."""
    pages = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                pages.append(int(file.read().split()[1]))
        except (OSError, ValueError, IndexError):
            continue
    return sum(pages) * _PAGE / MIB if pages else None


def cgroup_mb(pid: int, lane: int) -> float | None:
    """Memory of the executor's cgroup, in MiB; None when it has none of its own (cgroup v2 only)."""
    mine, lanes = _cgroup(pid), _cgroup(lane)
    if mine is None or mine == lanes:
        return None
    try:
        with open(f"/sys/fs/cgroup{mine}/memory.current", "rb") as file:
            return int(file.read()) / MIB
    except (OSError, ValueError):
        return None


def _cgroup(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            return next((line[3:].strip() for line in file if line.startswith("0::")), None)
    except OSError:
        return None


def tcp_bytes() -> dict[int, float] | None:
    """Bytes sent (acknowledged) and received, by the inode of each TCP socket; None where the kernel does not tell."""
    try:
        return _dump(socket.AF_INET) | _dump(socket.AF_INET6)
    except (OSError, AttributeError, struct.error):
        return None


def _dump(family: int) -> dict[int, float]:
    request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, 0xFFFFFFFF) + bytes(48)
    found: dict[int, float] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(1.0)
        link.send(struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + request)
        while True:
            data = link.recv(1 << 18)
            at = 0
            while at + 16 <= len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind == _DONE:
                    return found
                if kind == _ERROR or length < 16:
                    raise OSError("sock_diag refused")
                _take(data[at + 16 : at + length], found)
                at += (length + 3) & ~3


def _take(message: bytes, found: dict[int, float]) -> None:
    """One socket of a dump: its inode, and the attribute with its tcp_info."""
    (inode,) = struct.unpack_from("=I", message, _INODE_AT)
    at = _MESSAGE_LEN
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if length < 4:
            return
        if kind == _INFO and length >= 4 + _BYTES_AT + 16:
            acked, received = struct.unpack_from("=QQ", message, at + 4 + _BYTES_AT)
            found[inode] = float(acked + received)
        at += (length + 3) & ~3
