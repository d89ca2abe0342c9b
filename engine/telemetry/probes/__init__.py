"""Readers of this machine's sensors: cheap, cut off when they hang, silent about what is not there."""

from engine.telemetry.probes.source import RealSource

__all__ = ["RealSource"]
