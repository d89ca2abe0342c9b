drop index job_events_long;
drop index flight_recorder_gpu_held;
drop index flight_recorder_held;
