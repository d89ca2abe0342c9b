drop index workflow_node_jobs_awaiting;
drop trigger schedules_changed on schedules;
drop function engine_schedule_changed;
alter table schedules drop column jitter_s;
alter table schedules drop column origin;
drop table model_orders;
drop table job_logs;
alter table worker_heartbeats drop column detail;
