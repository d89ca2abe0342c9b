"""Chaos: a real fleet under kills, freezes, restarts and replays, and a verdict over what its database says."""
