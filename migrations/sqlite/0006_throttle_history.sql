-- A week of throttling of every box, read from this index alone: minute rows are half a kilobyte wide.
create index flight_recorder_held on flight_recorder (at, box, power_ms, thermal_ms, brakes, cpu_throttle_ms,
  gpu_hw_brake_ms, gpu_sync_boost_ms, gpu_throttle_source) where tier = 'minute';
