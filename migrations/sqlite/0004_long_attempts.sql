-- Ends of attempts that are long enough for a share of the hardware's past, box by box; short ones cost it nothing.
create index job_events_long on job_events (box, created_at) where elapsed_s >= 9;
