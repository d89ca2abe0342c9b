-- Four roles for the programs and people of a fleet, none of which owns anything or can log in by itself.
--
--   psql -v ON_ERROR_STOP=1 -d fleet -f deploy/roles.sql     as the owner of the schema (who may create roles), after every
--                                                            `queue-broker bootstrap`; idempotent
--   create user render_app password '...' in role flightdeck_submit;
--
--   flightdeck_read      sees all:  flightdeck --read-only, dashboards
--   flightdeck_submit    puts jobs, runs and human input in, and sees them:  a host app
--   flightdeck_operator  sees all, parks, resumes, cancels, retries, orders:  flightdeck, queue-worker-control
--   flightdeck_worker    what the fleet's own processes do:  queue-claim-worker, -orchestrator, -scheduler, -recorder
--
-- The job API (queue-broker-web) wants flightdeck_submit and flightdeck_operator. The schema stays its owner's: only that user
-- runs `queue-broker bootstrap`. Tables that a later migration brings are covered when this file is run again.

do $$
declare role text;
begin
  foreach role in array array['flightdeck_read', 'flightdeck_submit', 'flightdeck_operator', 'flightdeck_worker'] loop
    if not exists (select 1 from pg_roles where rolname = role) then
      execute format('create role %I nologin', role);
    end if;
    execute format('grant connect on database %I to %I', current_database(), role);
    execute format('grant usage on schema public to %I', role);
    execute format('revoke create on schema public from %I', role);
    -- From nothing, so that what an earlier version of this file gave is taken back.
    execute format('revoke all on all tables in schema public from %I', role);
    execute format('revoke all on all sequences in schema public from %I', role);
    execute format('grant select on all tables in schema public to %I', role);
  end loop;
end $$;
-- Before PostgreSQL 15 everybody might make tables here.
revoke create on schema public from public;

-- --- submit: rows that begin at the beginning

revoke select on all tables in schema public from flightdeck_submit;
grant select on engine_schema_version, ingest_jobs, workflow_runs, workflow_node_jobs, workflow_dispatch_events,
  input_submissions, job_events, job_logs, executions to flightdeck_submit;
grant usage on sequence job_id_seq to flightdeck_submit;
grant insert (id, task_name, queue, args, priority, max_attempts, budget_s, run_after, idempotency_key, body_hash, project)
  on ingest_jobs to flightdeck_submit;
grant insert (workflow_name, graph, priority, context, project) on workflow_runs to flightdeck_submit;
-- A new run is moved on by whoever submits it: it says running, and its first nodes are queued. One that ends at once (a node
-- that lacks its inputs) is left to the orchestrator, which ends it.
grant update (status, error, started_at, finished_at) on workflow_runs to flightdeck_submit;
grant insert (run_id, node_id, node, queue, required_model, status, priority, inputs, output, max_attempts, budget_s,
  only_boxes, avoid_boxes, project, finished_at) on workflow_node_jobs to flightdeck_submit;

-- --- operator: everything to see, orders to give; no attempt can be claimed or given an effect, no payload changed

grant usage on sequence job_id_seq to flightdeck_operator;
grant insert, update, delete on worker_controls, schedules, model_orders to flightdeck_operator;
grant insert on control_events, job_events, workflow_dispatch_events to flightdeck_operator;
grant insert (run_id, node_id, value) on input_submissions to flightdeck_operator;
grant update (status, error, processed_at) on input_submissions to flightdeck_operator;
-- Cancel, kill, run next; a retry is a new row that copies the old one.
grant update (status, error, finished_at, lease_expires_at, cancel_requested, kill_requested, is_priority, run_after)
  on ingest_jobs, workflow_node_jobs to flightdeck_operator;
grant insert (task_name, queue, args, priority, max_attempts, budget_s, only_boxes, avoid_boxes, project, retry_of)
  on ingest_jobs to flightdeck_operator;
grant update (status, error, started_at, finished_at) on workflow_runs to flightdeck_operator;
grant insert (workflow_name, graph, priority, context, retry_of, project) on workflow_runs to flightdeck_operator;
grant insert (run_id, node_id, node, queue, required_model, status, error, priority, inputs, output, max_attempts,
  budget_s, only_boxes, avoid_boxes, project, finished_at) on workflow_node_jobs to flightdeck_operator;
-- queue-broker-web says that it is there.
grant insert, update, delete on services to flightdeck_operator;

-- --- worker: the rows of work, of liveness and of telemetry; orders are not its to give

grant insert, update, delete on all tables in schema public to flightdeck_worker;
grant usage on all sequences in schema public to flightdeck_worker;
revoke insert, update, delete on engine_schema_version from flightdeck_worker;
revoke insert, update on worker_controls from flightdeck_worker;
revoke insert on model_orders, input_submissions from flightdeck_worker;
-- The leader vacuums the rows of work when they have gathered enough dead ones. Before PostgreSQL 17 only an owner may; there
-- the server's own autovacuum does it, later.
do $$
begin
  if current_setting('server_version_num')::int >= 170000 then
    execute 'grant maintain on ingest_jobs, workflow_node_jobs, workflow_dispatch_events to flightdeck_worker';
  end if;
end $$;
