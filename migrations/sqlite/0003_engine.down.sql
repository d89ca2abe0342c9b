drop table model_orders;
drop table job_logs;
alter table worker_heartbeats drop column detail;
