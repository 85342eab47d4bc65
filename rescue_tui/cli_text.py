"""The words that the command line shows to people: lines and table cells, built from values. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rescue_tui.core.access import GateDecision, Role
from rescue_tui.core.device import Disk, Health, Partition, Signature
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.guardstate import RefusedAttempt
from rescue_tui.core.imaging import ImagingPlan, cluster_words
from rescue_tui.core.job import JobRecord, JobState, Progress
from rescue_tui.core.text import human_bytes, human_seconds
from rescue_tui.jobs.verification import CaseVerdict
from rescue_tui.system.destination import DestinationState
from rescue_tui.system.guardview import GuardState

DEVICE_HEADS = ("DEVICE", "ROLE", "SIZE", "MODEL", "SERIAL", "CONTENT", "HEALTH")
JOB_HEADS = ("JOB", "STATE", "DONE", "BAD", "TITLE")
GRANTED_HEADS = ("GRANTED", "SERIAL", "MOUNTED AT", "FREE", "PROBLEM")
GUARD_WORDS = {"armed": "armed", "partial": "PARTIAL: something is not as it must be, see below",
               "absent": "ABSENT: the kernel does not refuse every write"}
_MODEL_CHARACTERS = 24


def device_row(disk: Disk, role: Role, health: Health | None) -> tuple[str, ...]:
    """The row of one disk below DEVICE_HEADS; short enough for 80 columns when the names are."""
    model = disk.model or disk.backing_file
    return (disk.node, role.access.value, human_bytes(disk.size_bytes),
            model if len(model) <= _MODEL_CHARACTERS else f"{model[:_MODEL_CHARACTERS - 3]}...",
            disk.serial or "-", content_words(disk), health_words(health))


def content_words(disk: Disk) -> str:
    """Every signature's kind, once each, the disk's own first: ``gpt: vfat, ext4, swap``; ``blank`` for none."""
    if disk.is_blank:
        return "blank"
    own = _kinds(disk.short_signatures)
    parts = list(dict.fromkeys(kind for part in disk.partitions for kind in _kinds(part.signatures)))
    count = len(disk.partitions)
    inner = ", ".join(parts) or (_count(count, "partition") if count else "")
    words = ": ".join(filter(None, (", ".join(own), inner)))
    return words if disk.signatures_complete else f"{words} (not all could be read)".strip()


def _kinds(signatures: Sequence[Signature]) -> list[str]:
    return list(dict.fromkeys(signature.kind for signature in signatures))


def health_words(health: Health | None) -> str:
    """The disk's own verdict in a few words; ``-`` when it wasn't asked or did not say."""
    if health is None or (health.unavailable and health.ok is None):
        return "-"
    words = ["FAILING" if health.ok is False else "ok" if health.ok else "unknown"]
    if health.media_errors:
        words.append(f"{health.media_errors} media errors")
    if health.critical_warning:
        words.append(f"critical warning 0x{health.critical_warning:02x}")
    return ", ".join(words)


def device_lines(disk: Disk, role: Role, health: Health | None, guard: str) -> list[str]:
    """All that is known of one disk, one ``name  value`` a line; what is unknown is left out."""
    pairs: list[tuple[str, str]] = [
        ("identity", f"{disk.id}{' (weak: bound to the slot)' if disk.id.is_weak else ''}"),
        ("node", disk.node),
        ("role", f"{role.access.value}: {role.reason}"),
        ("guard", guard),
        ("kind", f"{disk.kind.value} {disk.transport}".strip()),
        ("place", f"{'external' if disk.external else 'internal'} {disk.slot}".strip()),
        ("model", disk.model),
        ("serial", disk.serial),
        ("firmware", disk.firmware),
        ("size", f"{human_bytes(disk.size_bytes)} ({disk.size_bytes} bytes)"),
        ("sectors", f"{disk.logical_sector_bytes} logical, {disk.physical_sector_bytes} physical bytes"),
        ("backing file", disk.backing_file),
    ]
    if disk.namespace is not None:
        space, block = disk.namespace, disk.namespace.lba_format
        pairs += [
            ("namespace", f"nsid {space.nsid}, LBA format {block.data_bytes}+{block.metadata_bytes}"),
            ("nguid", space.nguid), ("eui64", space.eui64), ("uuid", space.uuid),
            ("subsystem", f"{space.subsystem.name} {space.subsystem.nqn}"),
            ("paths", ", ".join(space.paths)),
        ]
        pairs += [("controller", f"{each.name} {each.transport} {each.address} {each.state}")
                  for each in space.subsystem.controllers]
    pairs += [("signature", _signature_words(signature)) for signature in disk.signatures]
    pairs += [("partition", _partition_words(part)) for part in disk.partitions]
    pairs += [("holder", name) for name in disk.all_holders]
    pairs += [("mounted", f"{mount.target} ({mount.filesystem}, {'rw' if mount.writable else 'ro'})")
              for mount in disk.all_mounts]
    pairs += [("finding", finding_words(finding)) for finding in disk.findings]
    pairs += _health_pairs(health)
    return [f"{name:<13} {value}" for name, value in pairs if value]


def _signature_words(signature: Signature) -> str:
    named = [f"{name} {value}" for name, value in (("label", signature.label), ("uuid", signature.uuid)) if value]
    return ", ".join([f"{signature.kind} at byte {signature.offset_bytes}", *named])


def _partition_words(part: Partition) -> str:
    content = "; ".join(_signature_words(signature) for signature in part.signatures) or "no signature"
    name = f" {part.name!r}" if part.name else ""
    return f"{part.number}{name} {human_bytes(part.size_bytes)} at byte {part.start_bytes}: {content}"


def _health_pairs(health: Health | None) -> list[tuple[str, str]]:
    if health is None:
        return []
    if health.unavailable:
        return [("health", f"not known: {health.unavailable}")]
    figures = (
        ("temperature", health.temperature_celsius, " C"), ("spare", health.available_spare_percent, " %"),
        ("used", health.percentage_used, " %"), ("media errors", health.media_errors, ""),
        ("error log", health.error_log_entries, " entries"), ("powered on", health.power_on_hours, " h"),
        ("power losses", health.unsafe_shutdowns, ""),
    )
    pairs = [("health", health_words(health))]
    pairs += [(name, f"{figure}{unit}") for name, figure, unit in figures if figure is not None]
    return pairs + [("finding", finding_words(finding)) for finding in health.findings]


def finding_words(finding: Finding) -> str:
    """``warning: the sentence (evidence)``."""
    evidence = f" ({finding.evidence})" if finding.evidence else ""
    return f"{finding.severity.value}: {finding.summary}{evidence}"


def gate_row(disk: Disk, decision: GateDecision) -> tuple[str, ...]:
    """``node, serial, size, answer``: the answer is yes, or the first reason against it."""
    others = len(decision.refusals) - 1
    answer = "yes" if decision.allowed else decision.refusals[0].summary
    if others > 0:
        answer += f" (and {others} more reason{'s' if others > 1 else ''})"
    return disk.node, disk.serial or "-", human_bytes(disk.size_bytes), answer


def granted_row(state: DestinationState) -> tuple[str, ...]:
    """The row of one granted disk below GRANTED_HEADS."""
    free = "-" if state.space is None else human_bytes(state.space.free_bytes)
    problem = state.problem or ("" if state.present else "unplugged")
    return state.node, state.serial or "-", state.mount_point or "-", free, problem


def guard_lines(state: GuardState) -> list[tuple[str, bool]]:
    """The guard for people, a line and whether it is alarming: layers, counters, grants, last attempts, findings."""
    width = max((len(layer.name) for layer in state.layers), default=0)
    lines = [(f"guard      {GUARD_WORDS[state.level]}", not state.armed)]
    lines += [(f"layer      {layer.name:<{width}}  {layer.state.upper() if not layer.armed else layer.state}  "
               f"{'' if layer.refused is None else f'refused {layer.refused}. '}{layer.detail}".rstrip(),
               not layer.armed) for layer in state.layers]
    refused = "not counted" if state.refused is None else str(state.refused)
    lines += [(f"protected  {state.protected} of {len(state.devices)} disks and partitions are read-only", False),
              (f"refused    {refused}{kind_words(state.refused_by_kind, '; attached disks: ')}", False)]
    lines += [(f"counted    {device.node}{kind_words(device.refused, ': ')}"
               f"{f'; {device.flush_kept} flushes kept back' if device.flush_kept else ''}", False)
              for device in state.devices if any(device.refused.values()) or device.flush_kept]
    lines += [(f"granted    {grant.node}  serial {grant.serial or '-'}  since {grant.granted_at}"
               f"{'  VOID' if grant.device_id in state.void else ''}", grant.device_id in state.void)
              for grant in state.grants]
    lines += [(f"last       {attempt_words(attempt)}", False) for attempt in state.last]
    return lines + [(f"finding    {finding_words(finding)}", finding.severity is Severity.ERROR)
                    for finding in state.findings]


def kind_words(counts: Mapping[str, int], before: str) -> str:
    """``: bio 3, ioctl 1`` without the kinds of which there was none; empty when there was none at all."""
    words = ", ".join(f"{kind} {count}" for kind, count in counts.items() if count)
    return f"{before}{words}" if words else ""


def attempt_words(attempt: RefusedAttempt) -> str:
    """When, on what, what, by whom."""
    return (f"{attempt.at}  {attempt.device}  {attempt.what} 0x{attempt.opcode:02x} by {attempt.process} "
            f"(process {attempt.pid})")


def plan_lines(plan: ImagingPlan) -> list[str]:
    """A plan for people, the exact command last."""
    lines = [
        f"source    {plan.source_node}  serial {plan.source_serial or '-'}  {human_bytes(plan.size_bytes)}",
        f"identity  {plan.source}",
        f"image     {plan.image}",
        f"mapfile   {plan.mapfile}{' (resumed)' if plan.resume else ''}",
        f"reads     {cluster_words(plan)}",
    ]
    lines += [f"note      {finding_words(finding)}" for finding in plan.warnings]
    return [*lines, f"command   {shlex.join(plan.command)}"]


def job_row(record: JobRecord) -> tuple[str, ...]:
    """The row of one job below JOB_HEADS."""
    bad = human_bytes(record.progress.bad_bytes) if record.progress.bad_bytes else "-"
    return record.id, record.state.value, f"{record.progress.percent:.2f} %", bad, record.title


def stopped_lines(records: Sequence[JobRecord]) -> list[str]:
    """For each job that stopped before its end: why, and what to do. Below the table of jobs."""
    lines: list[str] = []
    for record in records:
        if record.state in {JobState.INTERRUPTED, JobState.FAILED} and record.error:
            lines += ["", f"{record.id}: {record.error}", f"  {record.hint}" if record.hint else ""]
    return lines


def progress_words(progress: Progress) -> str:
    """One line that tells how far it is, at which rate, how old the last good read is and what is left."""
    words = [progress.phase or "starting", f"{progress.percent:.2f} %",
             f"{human_bytes(progress.done_bytes)} of {human_bytes(progress.total_bytes)}"]
    if progress.current_rate is not None:
        words.append(f"{human_bytes(round(progress.current_rate))}/s")
    if progress.bad_bytes or progress.read_errors:
        words.append(f"bad {human_bytes(progress.bad_bytes)} in {_count(progress.bad_areas, 'area')}, "
                     f"{_count(progress.read_errors, 'read error')}")
    if progress.last_good_read_seconds is not None and progress.last_good_read_seconds >= 5:
        words.append(f"last good read {human_seconds(progress.last_good_read_seconds)} ago")
    if progress.eta_low_seconds is not None and progress.eta_high_seconds is not None:
        low, high = human_seconds(progress.eta_low_seconds), human_seconds(progress.eta_high_seconds)
        words.append(f"{low} left" if low == high else f"{low} to {high} left")
    if progress.message:
        words.append(progress.message)
    return ", ".join(words)


def verdict_lines(verdict: CaseVerdict) -> list[str]:
    """What a check of a case folder found, the answer last."""
    read = f"{_count(verdict.checked_files, 'file')}, {human_bytes(verdict.checked_bytes)} were read again"
    answer = "everything is as it was" if verdict.good else "NOT everything is as it was"
    return [*(finding_words(finding) for finding in verdict.findings), f"{verdict.case}: {answer} ({read})."]


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def end_words(record: JobRecord) -> str:
    """How a job ended, and what to do next."""
    progress = record.progress
    where = f" The case folder is {record.case}." if record.case else ""
    match record.state:
        case JobState.DONE:
            return f"{record.title}: done, everything was read.{where}"
        case JobState.DAMAGED:
            return (f"{record.title}: done, {human_bytes(progress.bad_bytes)} in {_count(progress.bad_areas, 'area')} "
                    f"could not be read.{where}")
        case JobState.FAILED:
            return f"{record.title}: failed. {record.error} {record.hint}".rstrip()
        case JobState.CANCELLED:
            return f"{record.title}: cancelled; what was copied stays.{where}"
        case JobState.PAUSED:
            return f"{record.title}: paused. `stasis jobs resume {record.id}` goes on."
        case JobState.INTERRUPTED:
            reason = f"{record.error} {record.hint}".strip()
            return f"{record.title}: interrupted. {reason} `stasis jobs resume {record.id}` goes on."
        case _:
            return f"{record.title}: {record.state.value}. `stasis jobs attach {record.id}` follows it."
