drop index flight_recorder_held;
