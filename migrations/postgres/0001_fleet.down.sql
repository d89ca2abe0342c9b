drop table boxes, schedule_fires, schedules, services, worker_controls, worker_heartbeats, input_submissions,
  control_events, job_events, workflow_dispatch_events, executions, ingest_jobs, workflow_node_jobs, workflow_runs;
drop function engine_notify_ready(), engine_notify_control(), engine_touch_control();
drop function engine_place(text[], text[]);
drop domain node_job_status, ingest_job_status, job_family, dispatch_kind, job_count, job_fence, job_boxes;
drop sequence job_id_seq;
