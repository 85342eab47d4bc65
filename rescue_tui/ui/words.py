"""The short words that stand for values in tables and bars. Pure; what comes from a device is escaped by the caller."""

from __future__ import annotations

from collections.abc import Sequence

from rescue_tui.core.access import Access, Role
from rescue_tui.core.device import DeviceKind, Disk, Health, Signature
from rescue_tui.core.finding import Severity
from rescue_tui.core.job import JobRecord, JobState, Progress
from rescue_tui.core.text import human_bytes, human_seconds

UNKNOWN_ROLE = Role(Access.SOURCE, "Every disk is a source until it is granted.")

_ROLES = {
    Access.SOURCE: "source",
    Access.DESTINATION: "DESTINATION",
    Access.BOOT_MEDIUM: "boot medium",
    Access.OFF_LIMITS: "off limits",
}
_ROLE_STYLES = {Access.SOURCE: "", Access.DESTINATION: "bold green", Access.BOOT_MEDIUM: "cyan", Access.OFF_LIMITS: ""}

_STATES = {
    JobState.PENDING: "STARTING",
    JobState.RUNNING: "RUNNING",
    JobState.PAUSING: "PAUSING",
    JobState.PAUSED: "PAUSED",
    JobState.CANCELLING: "CANCELLING",
    JobState.CANCELLED: "CANCELLED",
    JobState.DONE: "DONE",
    JobState.DAMAGED: "DAMAGED",
    JobState.FAILED: "FAILED",
    JobState.INTERRUPTED: "INTERRUPTED",
}
_STATE_STYLES = {
    JobState.DONE: "bold green",
    JobState.DAMAGED: "bold yellow",
    JobState.FAILED: "bold red",
    JobState.INTERRUPTED: "bold yellow",
    JobState.PAUSED: "bold yellow",
}


def role_word(role: Role) -> str:
    """At most 11 characters."""
    return _ROLES[role.access]


def role_style(role: Role) -> str:
    """A colour that repeats the word, never replaces it."""
    return _ROLE_STYLES[role.access]


def state_word(state: JobState) -> str:
    """The state in capitals; ``DONE`` only for a job that read everything."""
    return _STATES[state]


def state_style(state: JobState) -> str:
    """A colour that repeats the word."""
    return _STATE_STYLES.get(state, "bold")


def kind_word(disk: Disk) -> str:
    """``nvme``, ``nvme/tcp``, ``ata``, ``usb``: PCIe is what an NVMe disk is expected on."""
    if disk.kind is DeviceKind.ATA:
        return disk.transport or disk.kind.value
    if disk.transport and disk.transport not in ("pcie", disk.kind.value):
        return f"{disk.kind.value}/{disk.transport}"
    return disk.kind.value


def health_word(health: Health | None) -> str:
    """``reading`` before there is an answer, then good, worn (a warning), FAILING or unknown."""
    if health is None:
        return "reading"
    severities = {finding.severity for finding in health.findings}
    if health.ok is False or health.critical_warning or Severity.ERROR in severities:
        return "FAILING"
    if health.unavailable and health.ok is None:
        return "unknown"
    if Severity.WARNING in severities or health.media_errors:
        return "WARNING"
    return "good" if health.ok else "unknown"


def health_style(health: Health | None) -> str:
    """A colour that repeats the word."""
    return {"FAILING": "bold red", "WARNING": "bold yellow", "good": "green"}.get(health_word(health), "")


def kinds(signatures: Sequence[Signature]) -> str:
    """Each kind once, in the order found."""
    return ", ".join(dict.fromkeys(signature.kind for signature in signatures))


def content_words(disk: Disk) -> str:
    """All signatures in short: the disk's own, then its partitions' (``gpt: vfat, xfs``); ``blank`` for none."""
    if disk.is_blank:
        return "blank"
    if not disk.signatures_complete and not disk.all_signatures:
        return "not read"
    inner = kinds(tuple(signature for part in disk.partitions for signature in part.signatures))
    if not inner and disk.partitions:
        inner = f"{len(disk.partitions)} partitions"
    return ": ".join(filter(None, (kinds(disk.short_signatures), inner)))


def node_word(node: str) -> str:
    """The node without /dev/."""
    return node.removeprefix("/dev/")


def plural(count: int, thing: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def rate_words(rate: float | None) -> str:
    """Bytes a second for people; ``-`` when it is not known."""
    return "-" if rate is None else f"{human_bytes(round(rate))}/s"


def left_words(progress: Progress) -> str:
    """The time left as a range, never as one number that pretends to know."""
    if progress.eta_low_seconds is None or progress.eta_high_seconds is None:
        return "not known yet"
    low, high = human_seconds(progress.eta_low_seconds), human_seconds(progress.eta_high_seconds)
    return f"about {low}" if low == high else f"{low} to {high}"


def last_read_words(progress: Progress) -> str:
    """The age of the last good read: what tells a slow disk from a stuck one."""
    if progress.last_good_read_seconds is None:
        return "nothing read yet"
    return f"{human_seconds(progress.last_good_read_seconds)} ago"


def job_words(record: JobRecord) -> str:
    """What the state of a job means, and what to do next, in one or two sentences."""
    progress = record.progress
    match record.state:
        case JobState.DONE:
            return "DONE. Every sector was read. v verifies the case folder, o writes the report again."
        case JobState.DAMAGED:
            return (f"DAMAGED: the copy has ended, {human_bytes(progress.bad_bytes)} in "
                    f"{plural(progress.bad_areas, 'area')} could not be read. v verifies what was saved.")
        case JobState.FAILED:
            return " ".join(filter(None, ("FAILED.", record.error, record.hint)))
        case JobState.CANCELLED:
            return "CANCELLED. What was copied stays in the case folder, named partial."
        case JobState.PAUSED:
            return "PAUSED. The place is kept; r goes on, x ends the job. The source may be unplugged now."
        case JobState.INTERRUPTED:
            why = record.error or "The worker is gone."
            return f"INTERRUPTED. {why} r goes on where the mapfile ends, when source and destination are there."
        case JobState.PAUSING:
            return "PAUSING. The copy stops cleanly and keeps its place; wait."
        case JobState.CANCELLING:
            return "CANCELLING. The copy stops cleanly; wait."
        case JobState.PENDING:
            return "STARTING. The worker is on its way."
        case JobState.RUNNING:
            return "RUNNING. Don't unplug anything. p pauses, x cancels; you may leave with q, the job goes on."
