"""Stasis: read-only rescue of checkpoints from the NVMe drives of a dead storage node."""

__version__ = "0.1.0"
