-- What a box's GPUs did together, on the box's own rows: the hour of a hundred boxes is read without touching 48,000 rows
-- of cards. Null: no GPU, or written by a program that does not know these columns (readers then add the cards up).

alter table flight_recorder add column gpu_util_pct_min real;
alter table flight_recorder add column gpu_util_pct_max real;
alter table flight_recorder add column gpu_temp_c_min real;
alter table flight_recorder add column gpu_temp_c_max real;
alter table flight_recorder add column gpu_power_w_min real;
alter table flight_recorder add column gpu_power_w_max real;
alter table flight_recorder add column gpu_sm_mhz_min real;
alter table flight_recorder add column gpu_sm_mhz_max real;
alter table flight_recorder add column gpu_hw_brake_ms real;
alter table flight_recorder add column gpu_sync_boost_ms real;
alter table flight_recorder add column gpu_throttle_source text;
