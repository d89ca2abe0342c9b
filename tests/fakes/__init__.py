"""Stand-ins for what these machines may lack."""
