"""Whole screens; each keeps what it shows and asks the app to act."""
