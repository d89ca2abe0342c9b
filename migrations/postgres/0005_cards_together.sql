-- What a box's GPUs did together, on the box's own rows: the hour of a hundred boxes is read without touching 48,000 rows
-- of cards. Null: no GPU, or written by a program that does not know these columns (readers then add the cards up).

alter table flight_recorder
  add column gpu_util_pct_min double precision,
  add column gpu_util_pct_max double precision,
  add column gpu_temp_c_min double precision,
  add column gpu_temp_c_max double precision,
  add column gpu_power_w_min double precision,
  add column gpu_power_w_max double precision,
  add column gpu_sm_mhz_min double precision,
  add column gpu_sm_mhz_max double precision,
  add column gpu_hw_brake_ms double precision,
  add column gpu_sync_boost_ms double precision,
  add column gpu_throttle_source text;

-- A row is deleted for every row written: what is dead is taken away early, so that the tables stay as large as an hour of
-- detail and a week of minutes are. Nothing indexed is ever updated, hence no room is kept on the pages.
alter table flight_recorder set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
alter table flight_recorder_gpu set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);
