"""Who has not been heard of for too long: dead boxes and lost lanes."""

from __future__ import annotations

from datetime import datetime

from engine.orchestrator.notice import Notice, dead_box
from engine.store import Db
from engine.telemetry.rows import AHEAD_S

SILENT_S = 30.0  # as the deck and the heartbeats' flag have it
LANE_SILENT_S = 42.0  # longer: the lanes of a box beat 10 s apart, and the death of the box is told instead of theirs


def silent(db: Db) -> dict[str, Notice]:
    """Dead boxes and lost lanes, by the key of the episode. A box that went in order (its lanes say so, its recorder took its
    row) is not dead."""
    now = db.now()
    lanes = db.all("select box, queue, project, state, last_seen from worker_heartbeats")
    boxes = db.all(
        "select b.box, (select max(x.at) from flight_recorder x where x.box = b.box and x.tier = 'detail' "
        "and x.at <= {after[ahead]}) as last_at, "
        "(select count(*) from services s where s.kind = 'recorder' and s.box = b.box) as recorders from boxes b",
        ahead=AHEAD_S,
    )
    signs: dict[str, list[datetime]] = {}
    works: set[str] = set()
    for row in boxes:
        if isinstance(row["box"], str):
            signs.setdefault(row["box"], []).extend([row["last_at"]] if row["last_at"] else [])
            works |= {row["box"]} if row["recorders"] else set()
    for row in lanes:
        if isinstance(row["box"], str):
            signs.setdefault(row["box"], []).append(row["last_seen"])
            works |= {row["box"]} if row["state"] != "stopping" else set()
    found: dict[str, Notice] = {}
    for box, times in signs.items():
        quiet_s = (now - max(times)).total_seconds() if times else 0.0
        if quiet_s > SILENT_S and box in works:
            queues = sorted({str(row["queue"]) for row in lanes if row["box"] == box and row["state"] != "stopping"})
            key = f"box_dead|{box}"
            found[key] = dead_box(db, box, quiet_s, queues, key)
    for row in lanes:
        quiet_s = (now - row["last_seen"]).total_seconds()
        if quiet_s <= LANE_SILENT_S or row["state"] == "stopping":
            continue
        where = f"{row['box']}/{row['queue']}" + (f" (project {row['project']})" if row["project"] else "")
        key = f"lane_lost|{row['box']}|{row['queue']}|{row['project']}"
        found[key] = Notice(
            "lane_lost", f"lane {where} has been silent for {quiet_s:.0f} s", key, str(row["box"]), str(row["queue"]),
            str(row["project"]), {"silent_s": round(quiet_s, 1)},
        )  # fmt: skip
    return found
