drop index job_events_caused;
drop index ingest_jobs_ended;
