drop index job_events_long;
