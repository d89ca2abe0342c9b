alter table flight_recorder_gpu reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
alter table flight_recorder reset (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
alter table flight_recorder
  drop column gpu_throttle_source,
  drop column gpu_sync_boost_ms,
  drop column gpu_hw_brake_ms,
  drop column gpu_sm_mhz_max,
  drop column gpu_sm_mhz_min,
  drop column gpu_power_w_max,
  drop column gpu_power_w_min,
  drop column gpu_temp_c_max,
  drop column gpu_temp_c_min,
  drop column gpu_util_pct_max,
  drop column gpu_util_pct_min;
