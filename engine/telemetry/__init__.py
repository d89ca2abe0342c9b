"""The flight recorder: what the hardware of each box did, every two seconds, and how it is read back."""
