-- A project's jobs that have ended, newest first or counted, without reading a row: of a million rows, a tenth of the table.
create index ingest_jobs_ended on ingest_jobs (project, status, id) where status in ('completed', 'failed', 'cancelled');
