drop table job_hardware;
drop table flight_recorder_gpu;
drop table flight_recorder;
