"""Examples of hypothesis are never timed: a loaded machine is no failure."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, database=None, suppress_health_check=(HealthCheck.too_slow,))
settings.load_profile("untimed")
