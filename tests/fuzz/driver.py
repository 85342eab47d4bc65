"""Scans of mutated saves, each within 2 s and 64 MiB, none of which may stop with an error of the reader's own."""

from __future__ import annotations

import hashlib
import json
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from rescue_tui.checkpoints.model import Options
from rescue_tui.checkpoints.registry import MISTAKES
from rescue_tui.checkpoints.scan import Scan, scan
from rescue_tui.checkpoints.tree import MemoryTree
from tests.fuzz.mutations import mutated
from tests.fuzz.seeds import MOST_BYTES, Files, seeds

SECONDS = 2.0
MEMORY_BYTES = 64 << 20
GUARD_BYTES = 1 << 30
_POOL_PER_SEED = 24
_RESET_EVERY = 500


class TooLong(BaseException):
    """The time of an input is over. No Exception, so that no reader takes it for damage."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An input that a reader did not get through. ``files`` are it."""

    seed: str
    kind: str  # hang, memory, mistake, or an exception's name
    told: str
    files: Files


@dataclass(slots=True)
class Outcome:
    """What a run did."""

    executions: int = 0
    seconds: float = 0.0
    slowest_seconds: float = 0.0
    largest_bytes: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    trap_sprung: bool = False


class Fuzzer:
    """Mutates seeds; a mutant about which something new is said becomes one itself."""

    def __init__(self, number: int, trap: Path, only: str = "") -> None:
        self._chance = random.Random(number)
        self._trap = trap
        self._pools = {name: [files] for name, files in seeds(trap).items() if only in name}
        self._all = [data for pool in self._pools.values() for data in pool[0].values() if data]
        self._known: set[object] = set()
        self._kinds: set[tuple[str, str]] = set()

    @property
    def seeds(self) -> tuple[str, ...]:
        """The names of what is mutated."""
        return tuple(self._pools)

    def run(self, executions: int) -> Outcome:
        """So many scans. The first ones are of the seeds as they are."""
        outcome = Outcome()
        began = time.perf_counter()
        with _alarm():
            for name, pool in list(self._pools.items())[:executions]:
                self._execute(name, pool[0], outcome)
            while outcome.executions < executions:
                name = self._chance.choice(self.seeds)
                self._execute(name, self._mutant(name), outcome)
        outcome.seconds = time.perf_counter() - began
        outcome.trap_sprung = self._trap.exists()
        return outcome

    def _mutant(self, name: str) -> Files:
        chance, pool = self._chance, self._pools[name]
        files = dict(chance.choice(pool))
        for path in chance.sample(sorted(files), min(len(files), chance.choice((1, 1, 1, 2)))):
            what = chance.randrange(40)
            if what == 0 and len(files) > 1:
                del files[path]
            elif what == 1:
                files[path + chance.choice((".tmp", ".pt", ".safetensors", ".gguf", ".npz", ".index"))] = files[path]
            else:
                files[path] = mutated(files[path], chance.choice(self._all), chance, MOST_BYTES)
        return files

    def _execute(self, name: str, files: Files, outcome: Outcome) -> None:
        if outcome.executions % _RESET_EVERY == 0:
            Path("/proc/self/clear_refs").write_text("5")  # proc(5): the peak begins anew
        outcome.executions += 1
        peak = _peak_bytes()
        began = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            found = scan(MemoryTree(files), Options(values=True), name)
        except TooLong:
            self._failed(outcome, name, "hang", f"it took more than {SECONDS} s", files)
            return
        except (*MISTAKES, OSError, EOFError, RuntimeError) as error:
            self._failed(outcome, name, type(error).__name__, _where(error), files)
            return
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        outcome.slowest_seconds = max(outcome.slowest_seconds, time.perf_counter() - began)
        grown = _peak_bytes() - peak
        outcome.largest_bytes = max(outcome.largest_bytes, grown)
        if grown > MEMORY_BYTES:
            self._failed(outcome, name, "memory", f"it took {grown >> 20} MiB", files)
        self._note(name, files, found, outcome)

    def _note(self, name: str, files: Files, found: Scan, outcome: Outcome) -> None:
        said: set[tuple[str, str, str]] = set()
        for row in found.checkpoints:
            outcome.verdicts[row.verdict.value] += 1
            outcome.formats[row.reading.format] += 1
            for finding in row.reading.findings:
                said.add((row.reading.format, finding.code, str(finding.verdict)))
                if finding.code == "reader-failed":
                    self._failed(outcome, name, "mistake", finding.summary, files)
        new = frozenset(said)
        if (name, new) not in self._known:
            self._known.add((name, new))
            pool = self._pools[name]
            pool.append(files)
            if len(pool) > _POOL_PER_SEED:
                pool.pop(self._chance.randrange(1, len(pool)))

    def _failed(self, outcome: Outcome, name: str, kind: str, told: str, files: Files) -> None:
        """One of each kind and place is enough."""
        if (kind, told) not in self._kinds:
            self._kinds.add((kind, told))
            outcome.failures.append(Failure(name, kind, told, dict(files)))


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else "?"
    return f"{place}: {str(error)[:200]}"


def _peak_bytes() -> int:
    """The most memory since it was last reset. Cheap: one read of what the kernel keeps."""
    return _status("VmHWM")


def _status(key: str) -> int:
    with open("/proc/self/status", "rb") as file:
        text = file.read()
    at = text.index(key.encode()) + len(key) + 1
    return int(text[at : at + 24].split()[0]) << 10


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def limit_memory(extra_bytes: int) -> None:
    """Let the process have no more address space than it has now and this much: a bomb costs it, not the machine."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + extra_bytes, hard))


def job(task: tuple[int, int, str, Path]) -> Outcome:
    """A part of a run in a process of its own: the number, executions, a part of seeds' names, and the trap."""
    number, executions, only, trap = task
    limit_memory(GUARD_BYTES)
    return Fuzzer(number, trap, only).run(executions)


def keep(failure: Failure, directory: Path) -> Path:
    """Write an input to a directory of its own, named by what it holds."""
    digest = hashlib.sha256(json.dumps({path: data.hex() for path, data in sorted(failure.files.items())}).encode())
    place = directory / f"{failure.kind}-{digest.hexdigest()[:12]}"
    for path, data in failure.files.items():
        target = place / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return place


def merged(outcomes: list[Outcome]) -> Outcome:
    """Several runs as one; ``seconds`` are the longest's."""
    total = Outcome()
    for one in outcomes:
        total.executions += one.executions
        total.seconds = max(total.seconds, one.seconds)
        total.slowest_seconds = max(total.slowest_seconds, one.slowest_seconds)
        total.largest_bytes = max(total.largest_bytes, one.largest_bytes)
        total.verdicts += one.verdicts
        total.formats += one.formats
        total.failures += one.failures
        total.trap_sprung |= one.trap_sprung
    return total


def describe(counts: Mapping[str, int]) -> str:
    """``intact 5, corrupt 3``."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
