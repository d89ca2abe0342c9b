drop index ingest_jobs_ended;
