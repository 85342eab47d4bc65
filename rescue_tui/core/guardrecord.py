"""What a case folder keeps of the write guard: looks at the start and the end of each run of a job (``guard.json``).

The kernel's own counters of the source stand beside what the guard says of itself: one that would let a write through
could hardly be trusted to count it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from rescue_tui.core.blockstat import WriteCounters
from rescue_tui.core.finding import Finding
from rescue_tui.core.guardstate import ARMED, LayerState, RefusedAttempt

SCHEMA = "stasis.guard-record/1"
START, END = "start", "end"


@dataclass(frozen=True, slots=True)
class NamedCounters:
    """The kernel's counters of a disk, or of one path to it, since it was attached."""

    name: str
    counters: WriteCounters


@dataclass(frozen=True, slots=True)
class GuardLook:
    """The guard at one moment. ``when`` is start or end, ``generation`` the diskseq of the source.

    ``refused_on_source`` counts by kind since the source was attached, ``refused_by_kind`` for all disks of then.
    ``problem`` says why the guard could not be looked at; then only the counters mean something.
    """

    when: str
    time: str
    boot_id: str
    generation: int
    level: str
    layers: tuple[LayerState, ...] = ()
    refused: int | None = None
    refused_by_kind: Mapping[str, int] = field(default_factory=dict)
    refused_on_source: Mapping[str, int] = field(default_factory=dict)
    flushes_kept_back: int = 0
    last_refused: tuple[RefusedAttempt, ...] = ()
    findings: tuple[Finding, ...] = ()
    counters: tuple[NamedCounters, ...] = ()
    problem: str = ""

    def is_of_the_attachment_of(self, other: GuardLook) -> bool:
        """True when counters of both can be compared: the same start of the machine, the disk not plugged again."""
        return (self.boot_id, self.generation) == (other.boot_id, other.generation)


@dataclass(frozen=True, slots=True)
class GuardRecord:
    """All looks of a source, in their order."""

    looks: tuple[GuardLook, ...]
    schema: str = SCHEMA

    def added_during(self) -> tuple[NamedCounters, ...]:
        """What the kernel sent to the source from the first look to the last, by disk or path.

        Between two looks of different attachments nothing is counted: the job did not run then.
        """
        total: dict[str, WriteCounters] = {}
        for earlier, later in pairwise(self.looks):
            if not later.is_of_the_attachment_of(earlier):
                continue
            before = {each.name: each.counters for each in earlier.counters}
            for each in later.counters:
                if each.name in before:
                    added = each.counters.since(before[each.name])
                    total[each.name] = added if each.name not in total else total[each.name].plus(added)
        return tuple(NamedCounters(name, counters) for name, counters in sorted(total.items()))

    @property
    def written(self) -> bool:
        """True when the kernel sent a write or a discard to the source during the job."""
        return any(each.counters.changing_ios for each in self.added_during())

    @property
    def armed(self) -> bool:
        """True when the guard was whole at every look."""
        return bool(self.looks) and all(look.level == ARMED for look in self.looks)


def guard_sentences(record: GuardRecord) -> tuple[str, ...]:
    """What the record means to the person who takes the case away."""
    if not record.looks:
        return ("The write guard was not looked at.",)
    sentences = ["The write guard was armed at the start and at the end."] if record.armed else [
        _gap(look) for look in record.looks if look.level != ARMED]
    last = record.looks[-1]
    if last.refused is None:
        sentences.append("Refused attempts were not counted.")
    else:
        on_source = sum(last.refused_on_source.values())
        sentences.append(f"Attempts to write that were refused since the machine was started: {last.refused}, of "
                         f"these on this disk{_kinds(last.refused_on_source)}: {on_source}. "
                         f"Flushes kept back from this disk: {last.flushes_kept_back}.")
    for each in record.added_during():
        added = each.counters
        sentences.append(f"{each.name}: while the job ran, the kernel sent {added.write_ios} writes, "
                         f"{added.discard_ios} discards and {added.flush_ios} flushes to it.")
    return tuple(dict.fromkeys(sentences))


def _gap(look: GuardLook) -> str:
    if look.problem:
        return f"The write guard could not be looked at, at the {look.when} ({look.time}): {look.problem}"
    missing = [f"{layer.name} {layer.state}" for layer in look.layers if layer.state != ARMED]
    wrong = [finding.summary for finding in look.findings]
    return (f"The write guard was not complete at the {look.when} ({look.time}): "
            f"{'; '.join((*missing, *wrong)) or look.level}.")


def _kinds(counts: Mapping[str, int]) -> str:
    words = ", ".join(_nonzero(counts.items()))
    return f" ({words})" if words else ""


def _nonzero(counts: Iterable[tuple[str, int]]) -> list[str]:
    return [f"{kind} {count}" for kind, count in counts if count]
