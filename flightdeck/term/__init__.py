"""The terminal: what goes to it, when it goes away, how it is left."""
