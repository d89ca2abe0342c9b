"""A second set of books: triggers of the run's database that write down every change of status, claim and owner.

They know nothing of the engine's own history, so that the two can be compared; and at the moment at which work is taken
from a lane they look whether that lane's session mark is held.
"""

from __future__ import annotations

from engine.store import Db

TABLES = {"node": "workflow_node_jobs", "ingest": "ingest_jobs"}

_POSTGRES = """
create table chaos_audit (
  id bigint generated always as identity primary key, at timestamptz not null default clock_timestamp(),
  family text not null, job_id bigint not null, old text not null, new text not null, old_fence bigint, fence bigint,
  old_attempt int, attempt int, old_owner text, owner text, held boolean, writer text
);
create table chaos_effects (
  id bigint generated always as identity primary key, at timestamptz not null default clock_timestamp(),
  job_id bigint not null, fence bigint not null, attempt int not null, worker text not null
);
create function chaos_audit() returns trigger language plpgsql as $$
declare held boolean;
begin
  if old.status = 'running' and new.status <> 'completed' then
    held := exists (
      select 1 from pg_locks l where l.locktype = 'advisory' and l.objsubid = 2 and l.granted
      and lpad(to_hex(l.classid::bigint), 8, '0') || lpad(to_hex(l.objid::bigint), 8, '0') = right(old.claimed_by, 16));
  end if;
  insert into chaos_audit (family, job_id, old, new, old_fence, fence, old_attempt, attempt, old_owner, owner, held, writer)
  values (tg_argv[0], new.id, old.status, new.status, old.fencing_token, new.fencing_token, old.attempt, new.attempt,
          old.claimed_by, new.claimed_by, held, current_setting('application_name'));
  return null;
end $$;
"""
_POSTGRES_TRIGGER = """
create trigger chaos_audit after update on {table} for each row
when (old.status is distinct from new.status or old.fencing_token is distinct from new.fencing_token)
execute function chaos_audit('{family}')
"""
_SQLITE = """
create table chaos_audit (
  id integer primary key autoincrement, at text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')),
  family text not null, job_id integer not null, old text not null, new text not null, old_fence integer, fence integer,
  old_attempt integer, attempt integer, old_owner text, owner text, held integer, writer text
);
create table chaos_effects (
  id integer primary key autoincrement, at text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')),
  job_id integer not null, fence integer not null, attempt integer not null, worker text not null
);
"""
_SQLITE_TRIGGER = """
create trigger chaos_audit_{family} after update on {table}
when old.status is not new.status or old.fencing_token is not new.fencing_token begin
insert into chaos_audit (family, job_id, old, new, old_fence, fence, old_attempt, attempt, old_owner, owner)
values ('{family}', new.id, old.status, new.status, old.fencing_token, new.fencing_token, old.attempt, new.attempt,
        old.claimed_by, new.claimed_by);
end
"""


def install(db: Db) -> None:
    """Make the tables and triggers in a migrated database."""
    if db.kind == "postgresql":
        db.raw.execute(_POSTGRES)
    else:
        db.raw.executescript(_SQLITE)
    for family, table in TABLES.items():
        trigger = _POSTGRES_TRIGGER if db.kind == "postgresql" else _SQLITE_TRIGGER
        db.raw.execute(trigger.format(family=family, table=table))
