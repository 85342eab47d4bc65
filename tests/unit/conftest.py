"""Examples of hypothesis are never timed: a loaded machine is no failure. A false sysfs for the guard."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from rescue_tui.system import blockdev
from tests.support.false_sysfs import Sysfs

settings.register_profile("untimed", deadline=None, database=None, suppress_health_check=(HealthCheck.too_slow,))
settings.load_profile("untimed")


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sysfs:
    """A sysfs with the disk and one partition. Nodes in /dev are taken for what they say: there are none here."""
    monkeypatch.setattr(blockdev, "check_node", lambda _node, _dev: None)
    made = Sysfs(tmp_path / "sys")
    made.add("sdq", "65:0", 41, parts=[(1, "65:1")])
    return made
