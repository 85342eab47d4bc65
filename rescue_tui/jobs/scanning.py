"""Scanning directories for checkpoints with all cores: the survey here, the reading in processes of their own.

Small scans, and scans of one save, stay in this process, where threads read its files: starting processes costs more
than they save. A directory with many large members is judged here while its members are read there.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYet
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, redirect_stderr
from dataclasses import dataclass, field, replace
from multiprocessing import resource_tracker
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event as SharedEvent
from pathlib import Path
from pickle import PicklingError  # noqa: TID251  named to be caught; nothing is loaded
from threading import Event
from typing import TypeVar

from rescue_tui.checkpoints.desk import Spread
from rescue_tui.checkpoints.judge import CLAIMS, desk_of, judge_alone, judge_unit
from rescue_tui.checkpoints.model import Checkpoint, Options
from rescue_tui.checkpoints.names import Promise, promise
from rescue_tui.checkpoints.registry import MISTAKES
from rescue_tui.checkpoints.scan import Scan, conclude, row_of
from rescue_tui.checkpoints.source import CHUNK_BYTES, UnreadableBytes
from rescue_tui.checkpoints.stored_sum import entry_of
from rescue_tui.checkpoints.survey import FILE, Tally, Unit, folder_of, survey
from rescue_tui.checkpoints.tree import Kind, Tree, walk
from rescue_tui.core.errors import CommandError, UsageError
from rescue_tui.jobs.damage import AskedMap, KnownMap, damage_map, with_elsewhere
from rescue_tui.system.filetree import FileTree, Media

Item = TypeVar("Item")
Result = TypeVar("Result")
Tick = Callable[[str, int, int], None]
# Below this, the threads of one process are done before other processes have started: some 0.3 s, in which two threads
# read 4 GiB of warm files.
POOL_BYTES = 16 << 30
SPREAD_BYTES = 64 << 20
_POLL_SECONDS = 0.2


class ScanStopped(BaseException):
    """Somebody asked to stop. No Exception, so that no reader takes it for damage."""


@dataclass(frozen=True, slots=True)
class ScanAnswer:
    """``root`` is what the rows' paths are relative to, as it was asked for. ``maps``: see `jobs.damage`."""

    root: str
    scan: Scan
    maps: tuple[KnownMap, ...] = ()
    media: Media = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Start:
    """Where to look: a root that nothing is read outside of, and paths below it (``""``: all of it)."""

    root: Path
    label: str
    below: tuple[str, ...]


def start_of(paths: Sequence[Path], root: Path | None = None) -> Start:
    """The root of what was asked for: the directory itself, a file's directory, or what several paths share.

    ``root`` names another one above them, whose pointers and siblings then count as well; the paths are rows of a scan
    of it. Raises UsageError for a path that is not there (a TensorFlow bundle may be named by its prefix).
    """
    if not paths:
        raise UsageError("No path is given.", "Name a directory.")
    real = [Path(os.path.abspath(path)) for path in paths]
    for path, asked in zip(real, paths, strict=True) if root is None else [(root, root)]:
        if not path.exists() and not path.with_name(f"{path.name}.index").exists():
            raise UsageError(f"{asked} is not there.", "Name a directory or a file.")
    if root is not None:
        return _start_below(Path(os.path.abspath(root)), root, real)
    if len(real) == 1:
        if real[0].is_dir():
            return Start(real[0], str(paths[0]), ("",))
        return Start(real[0].parent, str(paths[0].parent), (real[0].name,))
    shared = Path(os.path.commonpath([path if path.is_dir() else path.parent for path in real]))
    return _start_below(shared, shared, real)


def _start_below(root: Path, label: Path, paths: Sequence[Path]) -> Start:
    for path in paths:
        if not path.is_relative_to(root):
            raise UsageError(f"{path} is not below {root}.", "Name a path below it.")
    below = [str(path.relative_to(root)) for path in paths]
    return Start(root, str(label), tuple("" if name == "." else name for name in dict.fromkeys(below)))


def units_of(tree: Tree, below: Sequence[str], tally: Tally) -> list[Unit]:
    """The units at and below the paths, each once."""
    found: dict[str, Unit] = {}
    for path in below:
        entry = entry_of(tree, path) if path else None
        if path and (entry is None or entry.kind is not Kind.DIRECTORY):
            units: Iterable[Unit] = (_unit_with(tree, path),)
            tally.files += 1
        else:
            units = survey(tree, path, CLAIMS, tally)
        for unit in units:
            found.setdefault(unit.path, unit)
    return list(found.values())


def _unit_with(tree: Tree, path: str) -> Unit:
    """The file alone, or what it is the main file of: shards of an index, a bundle of its prefix."""
    directory = path.rpartition("/")[0]
    entries = tree.listing(directory)
    files = frozenset(entry.path.rpartition("/")[2] for entry in entries if entry.kind is Kind.FILE)
    candidates = tuple(sorted(name for name in files if promise(name) is not Promise.NOTHING))
    folder = folder_of(directory, (), tuple(files), candidates)
    for claim in CLAIMS:
        for unit in claim(tree, folder):
            if not unit.whole and (path in unit.parts or path == unit.path):
                return Unit(unit.layout, path if unit.path == directory else unit.path, directory, unit.parts)
    return Unit(FILE, path, directory, (path,))


def scan_paths(paths: Sequence[Path], options: Options, tick: Tick | None = None, stop: Event | None = None,
               processes: int | None = None, *, root: Path | None = None,
               mapfile: AskedMap | None = None) -> ScanAnswer:
    """Judge everything at the paths. ``tick`` gets what is read, bytes read and bytes in all.

    ``root`` as in `start_of`. What images are mounted there and lack is found out, ``mapfile`` is one that was named.
    ``stop`` ends it early: then ScanStopped is raised. Raises UsageError, FormatError, DeviceError, CommandError, and
    OSError for the root.
    """
    start = start_of(paths, root)
    damage = damage_map(start.root, mapfile)
    meter = _Meter(tick or _unheard, stop or Event())
    count = processes or len(os.sched_getaffinity(0))
    tally = Tally()
    # Closed at once, so that what was scanned can be unmounted whoever still holds a frame of ours.
    with closing(FileTree(start.root, meter.read, media=damage.media, lanes=count)) as tree:
        rows = _rows(tree, start, units_of(tree, start.below, tally), options, meter, count)
    damage = with_elsewhere(damage, start.root, lambda: meter.read(0))
    scan = conclude(rows, tally)
    return ScanAnswer(start.label, replace(scan, findings=(*scan.findings, *damage.findings)), damage.maps,
                      damage.media)


def _rows(tree: FileTree, start: Start, units: Sequence[Unit], options: Options, meter: _Meter,
          count: int) -> list[Checkpoint]:
    sizes = {unit.path: _size(tree, unit) for unit in units}
    meter.total = sum(sizes.values())
    if count > 1 and len(units) > 1 and meter.total >= POOL_BYTES:
        try:
            with _quiet_interrupts():
                return list(_in_parallel(tree, start, units, sizes, options, meter, count))
        except (OSError, EOFError):  # no processes to be had here: no /dev/shm, no more of them allowed
            pass
    return list(_in_turn(tree, start, units, options, meter))


def _unheard(name: str, done_bytes: int, total_bytes: int) -> None:
    del name, done_bytes, total_bytes


class _Meter:
    """Counts bytes read, tells of them, and ends the scan when asked to."""

    def __init__(self, tick: Tick, stop: Event) -> None:
        self.tick = tick
        self.stop = stop
        self.total = 0
        self.name = ""
        self._done = 0

    def read(self, count: int) -> None:
        """Some bytes were read in this process."""
        self._done += count
        self.show(0)

    def show(self, elsewhere: int) -> None:
        """Tell of what was read here and in other processes; files are read more than once, so it is bounded."""
        if self.stop.is_set():
            raise ScanStopped
        if self.total:
            self.tick(self.name, min(self._done + elsewhere, self.total), self.total)


def _size(tree: Tree, unit: Unit) -> int:
    if unit.whole:
        try:
            return sum(entry.size_bytes for entry in walk(tree, unit.directory).entries if entry.kind is Kind.FILE)
        except UnreadableBytes:
            return 0
    return sum(entry.size_bytes for part in unit.parts if (entry := entry_of(tree, part)) is not None)


def _in_turn(tree: FileTree, start: Start, units: Sequence[Unit], options: Options,
             meter: _Meter) -> Iterator[Checkpoint]:
    desk = desk_of(tree, options)
    for unit in units:
        meter.name = unit.path
        reading = judge_unit(desk, unit)
        if reading is not None:
            yield row_of(tree, unit, reading, options, start.root.name)


def _in_parallel(tree: FileTree, start: Start, units: Sequence[Unit], sizes: dict[str, int], options: Options,
                 meter: _Meter, count: int) -> Iterator[Checkpoint]:
    context = multiprocessing.get_context("forkserver")  # no fork of a process with threads, and imports done once
    context.set_forkserver_preload(["__main__", __name__])
    counter = context.Value(ctypes.c_uint64)
    stopped = context.Event()
    # Where one save is most of the work, its files are read in threads there too.
    lanes = count if max(sizes.values()) * count > sum(sizes.values()) else 1
    pool = ProcessPoolExecutor(count, context, _begin,
                               (str(start.root), options, counter, stopped, tree.media, lanes))
    watch = _Watch(pool, tree, options, meter, counter)
    try:
        large = [unit for unit in units if unit.layout != FILE and sizes[unit.path] >= SPREAD_BYTES]
        small = sorted((unit for unit in units if unit not in large), key=lambda unit: -sizes[unit.path])
        waiting = [(unit, pool.submit(_judge, unit, start.root.name)) for unit in small]
        desk = desk_of(tree, options, watch)
        for unit in large:
            meter.name = unit.path
            reading = judge_unit(desk, unit)
            if reading is not None:
                yield row_of(tree, unit, reading, options, start.root.name)
        for unit, future in waiting:
            meter.name = unit.path
            try:
                row = watch.result(future)
            except (*MISTAKES, PicklingError):  # a result that no pipe carries: once more, here
                row = _judged(tree, options, unit, start.root.name)
            if row is not None:
                yield row
    except BrokenProcessPool as error:
        raise CommandError("A process that reads checkpoints was killed, most likely for want of memory.",
                           "Scan fewer directories at once, or free memory.") from error
    finally:
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)


class _Watch(Spread):
    """Calls functions in the pool; while it waits, it tells of progress and looks whether to stop."""

    def __init__(self, pool: ProcessPoolExecutor, tree: Tree, options: Options, meter: _Meter,
                 counter: Synchronized[int]) -> None:
        self._pool = pool
        self._tree = tree
        self._options = options
        self._meter = meter
        self._counter = counter

    def __call__(self, function: Callable[[Tree, Options, Item], Result], items: Sequence[Item]) -> Iterable[Result]:
        """The results in order; what no pipe carries is done here."""
        futures = [self._pool.submit(_call, function, item) for item in items]
        for item, future in zip(items, futures, strict=True):
            try:
                yield self.result(future)
            except (*MISTAKES, PicklingError):
                yield function(self._tree, self._options, item)

    def result(self, future: Future[Result]) -> Result:
        """What a call in the pool returned, once it has."""
        while not wait((future,), _POLL_SECONDS).done:
            self._meter.show(self._counter.value)
        self._meter.show(self._counter.value)
        try:
            return future.result(0)
        except NotYet as error:  # pragma: no cover  it is done
            raise AssertionError from error


@contextmanager
def _quiet_interrupts() -> Iterator[None]:
    """Processes started here inherit a blocked SIGINT: Ctrl-C goes to the whole group, and we end them ourselves."""
    # A full-screen program may have put something without a descriptor in the place of stderr, which the tracker wants.
    with redirect_stderr(sys.__stderr__):
        resource_tracker.ensure_running()  # whoever starts it, which else happens on the way, unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In the processes of the pool -----------------------------------------------------------------------------------------
class _Worker:
    """What one process of the pool holds."""

    def __init__(self, root: str, options: Options, counter: Synchronized[int], stopped: SharedEvent,
                 media: Media, lanes: int) -> None:
        self.tree = FileTree(Path(root), self.read, media=media, lanes=lanes)
        self.options = options
        self._counter = counter
        self._stopped = stopped
        self._untold = 0

    def read(self, count: int) -> None:
        """Tell in steps of a chunk, since every step takes a lock."""
        self._untold += count
        if self._untold < CHUNK_BYTES:
            return
        with self._counter.get_lock():
            self._counter.value += self._untold
        self._untold = 0
        if self._stopped.is_set():
            raise ScanStopped


_WORKERS: list[_Worker] = []


def _begin(root: str, options: Options, counter: Synchronized[int], stopped: SharedEvent, media: Media,
           lanes: int) -> None:
    _WORKERS[:] = [_Worker(root, options, counter, stopped, media, lanes)]


def _call(function: Callable[[Tree, Options, Item], Result], item: Item) -> Result:
    return function(_WORKERS[0].tree, _WORKERS[0].options, item)


def _judge(unit: Unit, root_name: str) -> Checkpoint | None:
    return _judged(_WORKERS[0].tree, _WORKERS[0].options, unit, root_name)


def _judged(tree: Tree, options: Options, unit: Unit, root_name: str) -> Checkpoint | None:
    reading = judge_alone(tree, options, unit)
    return None if reading is None else row_of(tree, unit, reading, options, root_name)
