"""The documents of the command line, built from values: what `--json` prints. Pure.

Fields may be added and never renamed: scripts and fleets read them. Sizes are bytes, times RFC 3339 in UTC, text from
devices is escaped by `to_plain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rescue_tui.core.access import Access, GateDecision, Role
from rescue_tui.core.device import Disk, Health, Partition
from rescue_tui.core.errors import ExitStatus, RescueError, SetupError
from rescue_tui.core.finding import Finding
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.imaging import ImagingPlan
from rescue_tui.core.job import JobRecord
from rescue_tui.core.record import Plain, document, to_plain
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.core.text import printable_lines
from rescue_tui.system.guardview import GuardState

Document = dict[str, Plain]
UNKNOWN_GUARD = "unknown"
NO_GUARD = SetupError("There is no write guard here: this is not the Stasis image.",
                      "Boot the image. Stasis itself writes to granted disks only; nothing keeps others from it.")
UNKNOWN_ROLE = Role(Access.SOURCE, "Every disk is a source until it is granted.")


def devices_document(
    snapshot: Snapshot, roles: Mapping[DeviceId, Role], healths: Mapping[str, Health], guard: Mapping[str, str]
) -> Document:
    """Every disk of ``snapshot``; ``healths`` and ``guard`` (see `guard_words`) are keyed by node and may lack some."""
    return document(
        "devices", taken_at=snapshot.taken_at, boot_part_uuid=snapshot.boot_part_uuid, findings=snapshot.findings,
        devices=[disk_fields(disk, roles.get(disk.id, UNKNOWN_ROLE), healths.get(disk.node), guard)
                 for disk in snapshot.disks])


def disk_fields(disk: Disk, role: Role, health: Health | None, guard: Mapping[str, str]) -> Document:
    """One disk; ``health`` is None when it wasn't asked."""
    return {name: to_plain(value) for name, value in {
        "role": role.access,
        "reason": role.reason,
        "identity": disk.id,
        "weak": disk.id.is_weak,
        "node": disk.node,
        "dev": _dev(disk.dev),
        "generation": disk.generation,
        "kind": disk.kind,
        "model": disk.model,
        "serial": disk.serial,
        "firmware": disk.firmware,
        "size_bytes": disk.size_bytes,
        "logical_sector_bytes": disk.logical_sector_bytes,
        "physical_sector_bytes": disk.physical_sector_bytes,
        "transport": disk.transport,
        "slot": disk.slot,
        "wwn": disk.wwn,
        "read_only": disk.read_only,
        "removable": disk.removable,
        "external": disk.external,
        "rotational": disk.rotational,
        "backing_file": disk.backing_file,
        "namespace": disk.namespace,
        "health": health,
        "partition_table": disk.partition_table,
        "signatures": disk.signatures,
        "signatures_complete": disk.signatures_complete,
        "partitions": [_partition_fields(part, guard) for part in disk.partitions],
        "holders": disk.holders,
        "slaves": disk.slaves,
        "mounts": disk.mounts,
        "links": disk.links,
        "siblings": disk.siblings,
        "findings": disk.findings,
        "guard": guard.get(disk.node, UNKNOWN_GUARD),
    }.items()}


def _partition_fields(part: Partition, guard: Mapping[str, str]) -> Document:
    fields = to_plain(part)
    assert isinstance(fields, dict)
    del fields["id"]
    return {"identity": str(part.id), **fields, "dev": _dev(part.dev),
            "guard": guard.get(part.node, UNKNOWN_GUARD)}


def _dev(dev: tuple[int, int]) -> str:
    return f"{dev[0]}:{dev[1]}"


def guard_words(state: GuardState) -> Mapping[str, str]:
    """By node: ``granted`` (may be written), ``read-only`` (the kernel refuses), ``exempt`` (RAM, ours) or ``open``."""
    return {device.node: "granted" if device.granted else "read-only" if device.read_only
            else "exempt" if device.exempt else "open" for device in state.devices}


def guard_status(state: GuardState) -> ExitStatus:
    """0 when every layer is armed and no device is open, 4 where there is no guard at all, else 1."""
    if state.nowhere:
        return ExitStatus.SETUP
    return ExitStatus.GOOD if state.armed else ExitStatus.DAMAGE


def guard_document(state: GuardState) -> Document:
    """Layers, devices, grants and refused attempts; `WriteGrant.to_plain` keeps a grant's token out.

    Off the image it is an error as well, with all that could be seen beside it.
    """
    fields = to_plain(state)
    assert isinstance(fields, dict)
    status = guard_status(state)
    if status is not ExitStatus.SETUP:
        return document("guard", **fields, exit=status)
    return {**error_document("guard", NO_GUARD), **fields, "exit": int(status)}


def gate_fields(disk: Disk, decision: GateDecision) -> Document:
    """May the disk become the destination, and every reason against it."""
    return {
        "identity": str(disk.id), "node": disk.node, "serial": to_plain(disk.serial), "model": to_plain(disk.model),
        "size_bytes": disk.size_bytes, "allowed": decision.allowed,
        "refusals": _findings(decision.refusals), "warnings": _findings(decision.warnings),
    }


def _findings(findings: Iterable[Finding]) -> Plain:
    return to_plain(list(findings))


def plan_fields(plan: ImagingPlan) -> Document:
    """An imaging plan with its command as a list of words; without the whole disk, which `devices` tells."""
    fields = to_plain(plan)
    assert isinstance(fields, dict)
    del fields["disk"]
    return fields


def job_fields(record: JobRecord) -> Document:
    """A job with its percentage, so that a reader need not work it out."""
    fields = to_plain(record)
    assert isinstance(fields, dict)
    progress = fields["progress"]
    assert isinstance(progress, dict)
    progress["percent"] = record.progress.percent
    return fields


def image_document(
    plans: Sequence[ImagingPlan], jobs: Sequence[JobRecord], *, dry_run: bool, detached: bool, exit_status: int
) -> Document:
    """What `stasis image` planned and did; ``detached`` is true when jobs go on after the answer."""
    return document("image", dry_run=dry_run, detached=detached, exit=int(exit_status),
                    plans=[plan_fields(plan) for plan in plans], jobs=[job_fields(job) for job in jobs])


def error_document(verb: str, error: RescueError) -> Document:
    """The document of an error, see docs/DESIGN.md."""
    fields = document(verb, error={"kind": kind_of(error.status), "summary": error.summary, "hint": error.hint})
    body = fields["error"]
    assert isinstance(body, dict)
    # Evidence has several lines; `to_plain` would escape the line feeds.
    body["evidence"] = printable_lines(error.evidence)
    body["exit"] = int(error.status)
    return fields


def kind_of(status: ExitStatus) -> str:
    """The stable word for an exit status: usage, refused, setup, device, tool, format, space or interrupted."""
    return status.name.lower()


def relative(path: Path, root: Path) -> str:
    """``path`` as seen from ``root``, or whole when it isn't below."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
