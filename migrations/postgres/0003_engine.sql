-- What an operator reads and orders beyond a lane's switch: logs of jobs, orders about models, what a lane says of itself.

-- devices, slots by kind, side loops that ail: whatever a lane tells that is no column of its own.
alter table worker_heartbeats add column detail jsonb not null default '{}';

-- The end of what a job printed: the newest 64 KiB of its latest attempt.
create table job_logs (
  family     text not null check (family in ('node', 'ingest')),
  job_id     bigint not null,
  attempt    int not null default 0,
  tail       text not null default '',
  bytes      bigint not null default 0, -- all that the attempt has printed so far
  project    text not null default '',
  updated_at timestamptz not null default now(),
  primary key (family, job_id)
);

-- "Load this model" and "drop it", to the lanes of a box; box and queue may be '*'. Answered by each lane it meant.
create table model_orders (
  id           bigint generated always as identity primary key,
  box          text not null,
  queue        text not null default 'gpu',
  project      text not null default '',
  model        text not null,
  action       text not null check (action in ('load', 'unload')),
  requested_by text,
  created_at   timestamptz not null default now(),
  expires_at   timestamptz not null default now() + interval '10 minutes',
  answers      jsonb not null default '{}' -- owner of a lane -> what it did
);
create trigger model_orders_notify after insert on model_orders
  for each row execute function engine_notify_control();

-- Who wrote an entry (empty: somebody with SQL; else the app that registers it), and over how many seconds it spreads.
alter table schedules add column origin text not null default '';
alter table schedules add column jitter_s double precision not null default 0 check (jitter_s >= 0);

-- last_tick: up to where an entry is dealt with. Other times, or on again after having been off: it goes on from then.
create function engine_schedule_changed() returns trigger language plpgsql as $$
begin
  if new.last_tick is not distinct from old.last_tick then
    new.last_tick := clock_timestamp();
  end if;
  return new;
end $$;
create trigger schedules_changed before update on schedules for each row
  when (new.cron <> old.cron or new.tz <> old.tz or (new.enabled and not old.enabled))
  execute function engine_schedule_changed();

-- Nodes that wait for a person, oldest first.
create index workflow_node_jobs_awaiting on workflow_node_jobs (created_at, id) where status = 'awaiting_input';

-- What an operator looks for in a long history: jobs that ended badly, newest first, and events that are more than the
-- end of a job. Next to nothing beside all that completes, which is in neither.
create index workflow_node_jobs_ended_badly on workflow_node_jobs (status, id) where status in ('failed', 'cancelled');
create index ingest_jobs_ended_badly on ingest_jobs (status, id) where status in ('failed', 'cancelled');
create index job_events_telling on job_events (id) where event_type <> 'completed';
