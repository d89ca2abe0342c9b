"""The lane: a small supervisor that claims for its slots, and the executors that run user code."""
