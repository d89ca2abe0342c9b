"""Whom we measure against, each in a process of its own, with its documented best settings."""
