"""The pipe between lane and executor: frames of a small JSON header and payload bytes that the lane never parses.

A frame is ``>II`` (header length, payload length), the header, the payload. Parsing 1 MiB of JSON would hold the lane's
GIL for some 25 ms, so inputs and results travel as bytes.

Every hand-over of a job has a number (``no``), rising within a slot; an executor runs jobs in the order of their numbers.

Lane to executor, job socket:      ``job`` {no, ...} (payload: the inputs), ``load`` / ``unload`` {model, order}
Lane to executor, control socket:  ``cancel`` {no}, ``revoke`` {nos}
Executor to lane, job socket:      ``ready`` {models, budgets}, ``fatal`` {config} (payload: text), ``began`` {no} (only for
    jobs claimed ahead), ``done`` {no, s, e, p when it printed} (payload: result or error; s: ``completed failed refused cancelled``), ``expired`` {no},
    ``progress`` {id, pct, text}, ``beat`` {id}, ``model`` {model, loading}, ``answer`` {order, text},
    ``retire`` {reason} (it needs a successor)
Executor to lane, control socket:  ``revoked`` {nos}

``began`` is written before the executor looks at ``good`` (the monotonic second until which the job may start). So once
that second has passed and no ``began`` can be read, the job is certain not to start: the lane may give it back.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

_LENGTHS = struct.Struct(">II")
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().raw_decode  # a third of the time of json.loads, which looks for encodings and white space
MAX_HEADER = 256 * 1024
MAX_PAYLOAD = 256 * 1024 * 1024


class ProtocolError(Exception):
    """The other side wrote something that is no frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: ``kind``, its header fields, its payload."""

    kind: str
    header: dict[str, Any]
    payload: bytes


def pack(kind: str, payload: bytes = b"", **header: Any) -> bytes:
    """The bytes of one frame."""
    header["t"] = kind
    head = _encode(header).encode()
    return _LENGTHS.pack(len(head), len(payload)) + head + payload


class Reader:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes, oldest first. Raises ProtocolError; the stream is then useless."""
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        at, end = 0, len(buffer)
        while end - at >= 8:
            head_len, payload_len = _LENGTHS.unpack_from(buffer, at)
            if head_len > MAX_HEADER or payload_len > MAX_PAYLOAD:
                raise ProtocolError(f"frame of {head_len} + {payload_len} bytes")
            body = at + 8 + head_len
            if end < body + payload_len:
                break
            try:
                text = buffer[at + 8 : body].decode()
                header, length = _decode(text)
                if length != len(text):
                    raise ValueError("there is more behind it")
                kind = header.pop("t")
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise ProtocolError(f"header is not a frame's: {error}") from error
            frames.append(Frame(kind, header, bytes(buffer[body : body + payload_len])))
            at = body + payload_len
        if at:
            del buffer[:at]
        return frames
