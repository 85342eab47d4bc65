"""Whole machines from tests/data/machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rescue_tui.core.device import Disk
from rescue_tui.core.disks import SignatureScan, build_disks
from rescue_tui.core.machine import Machine

DATA = Path(__file__).parents[1] / "data/machine"
MACHINES = ("single-nvme", "multipath", "multipath-off", "mixed", "hostile", "boot-one", "boot-two")


def machine(name: str) -> Machine:
    """The machine of that name."""
    return Machine.from_plain(json.loads((DATA / f"{name}.json").read_text("utf-8")))


def disks(name: str, scans: Mapping[str, SignatureScan] | None = None) -> dict[str, Disk]:
    """Its disks by device node."""
    return {disk.node: disk for disk in build_disks(machine(name), scans or {})}
