"""Who may be written: the roles of disks, and the one gate that a destination passes. Pure; see `decide`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rescue_tui.core.finding import Finding
from rescue_tui.core.ident import DeviceId


class Access(StrEnum):
    """The role of a disk. Everything is a SOURCE until the gate makes it a DESTINATION."""

    SOURCE = "source"
    DESTINATION = "destination"
    BOOT_MEDIUM = "boot-medium"
    OFF_LIMITS = "off-limits"


@dataclass(frozen=True, slots=True)
class Role:
    """A role and the sentence that says why."""

    access: Access
    reason: str


@dataclass(frozen=True, slots=True)
class WriteGrant:
    """The capability to write to one attachment of one disk; only system.guard makes one.

    ``generation`` is the diskseq of the attachment: after a re-plug the grant is dead.
    """

    device_id: DeviceId
    generation: int
    node: str
    serial: str
    granted_at: str
    token: str


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What the gate says of one disk: every refusal (empty means: may be granted) and every warning."""

    device_id: DeviceId
    refusals: tuple[Finding, ...]
    warnings: tuple[Finding, ...]

    @property
    def allowed(self) -> bool:
        """True when nothing speaks against a grant."""
        return not self.refusals


Grants = Mapping[DeviceId, WriteGrant]
