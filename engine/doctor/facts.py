"""What the doctor looks at, as plain data. None: not known, or not asked for. Sizes in MiB, times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Holder:
    """Something that holds an old snapshot. ``kind``: session, prepared or slot."""

    kind: str
    name: str  # pid, gid or slot
    age_s: float | None = None
    who: str = ""  # application, user, address, state
    query: str = ""


@dataclass
class Table:
    """A job table's dead rows and the index of its queue."""

    name: str
    dead: int
    live: int
    index_mb: float
    index_rows: int
    vacuumed_s: float | None = None  # since the last vacuum, by anyone


@dataclass
class Postgres:
    version: int = 0  # as server_version_num
    version_text: str = ""
    pooled: bool = False  # the ordinary URL goes through a pooler
    direct_pooled: bool = False  # and so does the one for LISTEN and session locks
    listen_ms: float | None = None
    listen_error: str | None = None
    session_error: str | None = None
    holders: list[Holder] = field(default_factory=list)
    hidden: int = 0  # sessions that this user may not see into
    tables: list[Table] = field(default_factory=list)
    connections: int = 0
    max_connections: int = 0


@dataclass
class Sqlite:
    path: str
    exists: bool = True
    filesystem: str | None = None
    journal: str | None = None
    check: str | None = None  # what quick_check says; None: it did not end in time
    wal_mb: float = 0.0
    size_mb: float = 0.0
    session_error: str | None = None


@dataclass
class Fleet:
    """What the tables say of the fleet; see :mod:`engine.queue.health`."""

    services: list[dict[str, Any]] = field(default_factory=list)
    lanes: list[dict[str, Any]] = field(default_factory=list)
    unplaceable: dict[str, int] = field(default_factory=dict)
    schedules: int = 0  # enabled entries
    unserved: dict[tuple[str, str], int] = field(
        default_factory=dict
    )  # due jobs by (queue, project) without a live lane
    waiting: bool = False  # a job is queued or running, a run is live


@dataclass
class Machine:
    """This box. ``gpus``: (name, state, reason)."""

    gpus: list[tuple[str, str, str]] = field(default_factory=list)
    gpu_errors: list[str] = field(default_factory=list)
    disks: list[tuple[str, float, float]] = field(default_factory=list)  # path, free MiB, total MiB


@dataclass
class Facts:
    """``errors``: checks that could not be made, by name."""

    where: str
    unreachable: str | None = None
    answer_ms: float | None = None
    read_only: bool = False
    skew_s: float | None = None
    schema: int | None = None
    schema_needed: int = 0
    schema_error: str | None = None
    postgres: Postgres | None = None
    sqlite: Sqlite | None = None
    fleet: Fleet | None = None
    machine: Machine | None = None
    errors: dict[str, str] = field(default_factory=dict)
