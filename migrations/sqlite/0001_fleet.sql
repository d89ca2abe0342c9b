-- The whole fleet: runs, jobs, workers, services, telemetry. Names and columns are the contract.
-- Times are UTC ISO text with six decimals, JSON is text, booleans are 0/1.

create table workflow_runs (
  id            integer primary key autoincrement,
  workflow_name text not null default '',
  graph         text not null default '{"nodes": []}',
  status        text not null default 'queued'
                check (status in ('queued', 'running', 'completed', 'failed', 'cancelled')),
  priority      integer not null default 100,
  context       text not null default '{}',
  error         text,
  retry_of      integer,
  project       text not null default '',
  created_at    text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')),
  started_at    text,
  finished_at   text
);
create index workflow_runs_live on workflow_runs (status, id) where status in ('queued', 'running');
create index workflow_runs_recent on workflow_runs (project, id desc);
-- Ended by status, not yet by its last node: the sweep that sets finished_at reads only these.
create index workflow_runs_closing on workflow_runs (id)
  where status in ('failed', 'cancelled') and finished_at is null;

create table workflow_node_jobs (
  id                 integer primary key autoincrement,
  run_id             integer not null references workflow_runs (id) on delete cascade,
  node_id            text not null,
  node               text not null default '',
  queue              text not null default 'cpu' check (queue in ('cpu', 'gpu')),
  required_model     text,
  status             text not null default 'queued'
                     check (status in ('queued', 'running', 'completed', 'failed', 'cancelled',
                                       'awaiting_input', 'skipped')),
  priority           integer not null default 100,
  is_priority        integer not null default 0,
  inputs             text not null default '{}',
  output             text,
  error              text,
  attempt            integer not null default 0,
  failures           integer not null default 0,
  max_attempts       integer not null default 1,
  watchdog_retries   integer not null default 0,
  losses             integer not null default 0,
  budget_s           real,
  run_after          text,
  claimed_by         text,
  claimed_box        text,
  claimed_at         text,
  fencing_token      integer not null default 0,
  lease_expires_at   text,
  last_lost_box      text,
  last_lost_at       text,
  avoid_boxes        text not null default '[]',
  only_boxes         text not null default '[]',
  unplaceable_reason text,
  cancel_requested   integer not null default 0,
  kill_requested     integer not null default 0,
  progress_pct       real,
  progress_text      text,
  project            text not null default '',
  created_at         text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')),
  started_at         text,
  finished_at        text,
  -- One ascending integer for run-next and priority: a row comparison over it can be an index condition.
  -- Clamped: whatever priority a plain INSERT brings, it neither overflows nor passes for run-next.
  band      integer generated always as
            (min(max(priority, -499999), 499999) - case when is_priority then 1000000 else 0 end) virtual,
  model_key text generated always as (coalesce(required_model, '')) virtual,
  place     text generated always as (case when only_boxes = '[]' and avoid_boxes = '[]' then ''
    else only_boxes || '|' || avoid_boxes end) virtual,
  unique (run_id, node_id),
  check (queue = 'gpu' or required_model is null),
  -- A row that a claim cannot count up, or place, would stop the claims of its whole queue: refused at the door.
  -- (The largest rowid would end all inserts.)
  check (id between 1 and 1000000000000000000),
  check (typeof(priority) = 'integer' and is_priority in (0, 1) and typeof(max_attempts) = 'integer'),
  check (typeof(attempt) = 'integer' and attempt between 0 and 1000000000),
  check (typeof(fencing_token) = 'integer' and fencing_token between 0 and 1000000000000000000),
  check (typeof(failures) = 'integer' and failures between 0 and 1000000000),
  check (typeof(watchdog_retries) = 'integer' and watchdog_retries between 0 and 1000000000),
  check (typeof(losses) = 'integer' and losses between 0 and 1000000000),
  check (budget_s is null or typeof(budget_s) = 'real'),
  check (json_valid(only_boxes) and json_type(only_boxes) = 'array'),
  check (json_valid(avoid_boxes) and json_type(avoid_boxes) = 'array')
);
-- The only hot index.
create index workflow_node_jobs_claim on workflow_node_jobs
  (queue, project, model_key, place, band, created_at, id) where status = 'queued' and run_after is null;
create index workflow_node_jobs_due on workflow_node_jobs
  (queue, project, model_key, place, run_after) where status = 'queued' and run_after is not null;
create index workflow_node_jobs_running on workflow_node_jobs (queue, project) where status = 'running';

create table ingest_jobs (
  id                 integer primary key autoincrement,
  task_name          text not null default '',
  queue              text not null default 'default' check (queue not in ('cpu', 'gpu')),
  args               text not null default '{}',
  status             text not null default 'queued'
                     check (status in ('queued', 'running', 'completed', 'failed', 'cancelled')),
  priority           integer not null default 100,
  is_priority        integer not null default 0,
  result             text,
  error              text,
  attempt            integer not null default 0,
  failures           integer not null default 0,
  max_attempts       integer not null default 1,
  watchdog_retries   integer not null default 0,
  losses             integer not null default 0,
  budget_s           real,
  run_after          text,
  claimed_by         text,
  claimed_box        text,
  claimed_at         text,
  fencing_token      integer not null default 0,
  lease_expires_at   text,
  last_lost_box      text,
  last_lost_at       text,
  avoid_boxes        text not null default '[]',
  only_boxes         text not null default '[]',
  unplaceable_reason text,
  cancel_requested   integer not null default 0,
  kill_requested     integer not null default 0,
  progress_pct       real,
  progress_text      text,
  idempotency_key    text,
  body_hash          text,
  retry_of           integer,
  project            text not null default '',
  created_at         text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')),
  started_at         text,
  finished_at        text,
  band  integer generated always as
        (min(max(priority, -499999), 499999) - case when is_priority then 1000000 else 0 end) virtual,
  place text generated always as (case when only_boxes = '[]' and avoid_boxes = '[]' then ''
    else only_boxes || '|' || avoid_boxes end) virtual,
  -- A row that a claim cannot count up, or place, would stop the claims of its whole queue: refused at the door.
  -- (The largest rowid would end all inserts.)
  check (id between 1 and 1000000000000000000),
  check (typeof(priority) = 'integer' and is_priority in (0, 1) and typeof(max_attempts) = 'integer'),
  check (typeof(attempt) = 'integer' and attempt between 0 and 1000000000),
  check (typeof(fencing_token) = 'integer' and fencing_token between 0 and 1000000000000000000),
  check (typeof(failures) = 'integer' and failures between 0 and 1000000000),
  check (typeof(watchdog_retries) = 'integer' and watchdog_retries between 0 and 1000000000),
  check (typeof(losses) = 'integer' and losses between 0 and 1000000000),
  check (budget_s is null or typeof(budget_s) = 'real'),
  check (json_valid(only_boxes) and json_type(only_boxes) = 'array'),
  check (json_valid(avoid_boxes) and json_type(avoid_boxes) = 'array')
);
create index ingest_jobs_claim on ingest_jobs
  (queue, project, place, band, created_at, id) where status = 'queued' and run_after is null;
create index ingest_jobs_due on ingest_jobs
  (queue, project, place, run_after) where status = 'queued' and run_after is not null;
create index ingest_jobs_running on ingest_jobs (queue, project) where status = 'running';
create unique index ingest_jobs_idempotency on ingest_jobs (project, idempotency_key)
  where idempotency_key is not null;

-- The one committed effect of an ingest job, written in the transaction that completes it.
create table executions (
  job_id        integer primary key,
  fencing_token integer not null,
  worker        text not null default '',
  result        text,
  committed_at  text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now'))
);

-- The outbox of the graphs.
create table workflow_dispatch_events (
  id           integer primary key autoincrement,
  run_id       integer not null,
  node_id      text not null,
  kind         text not null check (kind in ('completed', 'failed', 'skipped', 'input')),
  attempts     integer not null default 0,
  not_before   text,
  error        text,
  processed_at text,
  created_at   text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now'))
);
create index workflow_dispatch_events_open on workflow_dispatch_events (id) where processed_at is null;

create table job_events (
  id            integer primary key autoincrement,
  family        text not null check (family in ('node', 'ingest')),
  job_id        integer not null,
  run_id        integer,
  node_id       text,
  attempt       integer,
  fencing_token integer,
  event_type    text not null,
  cause         text,
  box           text,
  queue         text,
  exit_code     integer,
  elapsed_s     real,
  detail        text not null default '{}',
  project       text not null default '',
  created_at    text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now'))
);
create index job_events_job on job_events (job_id, id);

create table control_events (
  id           integer primary key autoincrement,
  at           text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')),
  project      text not null default '',
  box          text,
  queue        text,
  action       text not null,
  policy       text,
  requested_by text,
  detail       text not null default '{}'
);

create table input_submissions (
  id           integer primary key autoincrement,
  run_id       integer not null,
  node_id      text not null,
  value        text,
  status       text not null default 'pending' check (status in ('pending', 'processed', 'failed')),
  error        text,
  created_at   text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')),
  processed_at text
);
create unique index input_submissions_in_flight on input_submissions (run_id, node_id) where status = 'pending';

-- What is.
create table worker_heartbeats (
  box              text not null,
  queue            text not null,
  project          text not null default '',
  incarnation      text not null default '',
  state            text not null default 'starting'
                   check (state in ('starting', 'running', 'draining', 'parking', 'parked', 'refused', 'stopping')),
  slots            integer not null default 0,
  busy             integer not null default 0,
  current_model    text,
  models_known     text not null default '[]',
  models_fit       text not null default '[]',
  vram_mb          real,
  version          text not null default '',
  last_seen        text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')),
  flagged_dead_at  text,
  last_exit_code   integer,
  last_exit_reason text,
  primary key (box, queue, project)
);

-- What is wanted. The newest matching row is the order; box and queue may be '*'.
create table worker_controls (
  box          text not null,
  queue        text not null,
  project      text not null default '',
  desired      text not null default 'on' check (desired in ('on', 'off')),
  policy       text not null default 'hard' check (policy in ('hard', 'drain')),
  reason       text,
  until        text,
  requested_by text,
  updated_at   text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')),
  primary key (box, queue, project)
);

create table services (
  kind        text not null,
  box         text not null,
  incarnation text not null,
  pid         integer,
  version     text not null default '',
  is_leader   integer not null default 0,
  last_seen   text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')),
  last_error  text,
  detail      text not null default '{}',
  primary key (kind, box, incarnation)
);

create table schedules (
  project   text not null default '',
  name      text not null,
  cron      text not null,
  tz        text not null default 'UTC',
  task_name text not null,
  queue     text not null default 'default',
  args      text not null default '{}',
  misfire   text not null default 'one' check (misfire in ('skip', 'one', 'all')),
  enabled   integer not null default 1,
  last_tick text,
  primary key (project, name)
);
create table schedule_fires (
  project  text not null default '',
  name     text not null,
  tick     text not null,
  job_id   integer,
  fired_at text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')),
  primary key (project, name, tick)
);

create table boxes (
  box         text primary key,
  machine_id  text not null default '',
  description text,
  cpu_model   text,
  cores       integer,
  mem_mb      real,
  gpus        text not null default '[]',
  driver      text,
  kernel      text,
  simulated   integer not null default 0,
  updated_at  text not null default (strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now'))
);

-- Node jobs count from 10^12, so that an id names one job of either family (PostgreSQL has one sequence for both).
insert into sqlite_sequence (name, seq) values ('workflow_node_jobs', 1000000000000);

-- "The newest row is the order" must hold for a plain SQL UPDATE too, which will not think of updated_at.
create trigger worker_controls_touch after update on worker_controls
when new.updated_at is old.updated_at
begin
  update worker_controls set updated_at = strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')
  where box = new.box and queue = new.queue and project = new.project;
end;
