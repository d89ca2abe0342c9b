"""Ingest tasks that every lane knows, with or without a host app."""
