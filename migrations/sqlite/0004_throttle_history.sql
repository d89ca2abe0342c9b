-- What throttling did to whom, for a fleet: a week of every box by the hour, and jobs whose hardware share is missing.

-- Minute rows of every box without reading them (they are half a kilobyte wide): 100 boxes for a day are 9 MB here.
create index flight_recorder_held on flight_recorder (at, box, power_ms, thermal_ms, brakes, cpu_throttle_ms)
  where tier = 'minute';
-- Causes that only GPUs have columns for; hardly any minute has any.
create index flight_recorder_gpu_held on flight_recorder_gpu (at, box, gpu_index, hw_brake_ms, sync_boost_ms)
  where tier = 'minute' and (hw_brake_ms > 0 or sync_boost_ms > 0);

-- Ends of attempts that are long enough for a share of the hardware's past; short ones cost it nothing.
create index job_events_long on job_events (box, created_at) where elapsed_s >= 9;
