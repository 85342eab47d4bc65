"""Reading one file in several threads: pieces in order, read ahead in order, into buffers that are used again.

Reading and the checksums of the bindings let go of the interpreter, so threads are enough to use all cores, and cost no
start. What is not yet asked for is announced to the kernel in the order of the file: a disk that must move its head
sees one stream, whatever the threads do.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, TypeVar

from rescue_tui.checkpoints.source import EndOfBytes, Found, Looked, Span, UnreadableBytes

Result = TypeVar("Result")
# Large enough to spare calls, small enough that what was read is still in the processor's cache when it is summed up.
PIECE_BYTES = 1 << 20
TASK_BYTES = 16 << 20
# Below this, handing work over costs more than it saves.
WIDE_BYTES = 8 << 20


class Part(NamedTuple):
    """A part of a run that one thread reads. ``run`` is the run's place among those asked for."""

    run: int
    span: Span


class Lanes:
    """Threads that read, at most ``count`` of them; started when they are first needed."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        self._own = threading.local()

    def close(self) -> None:
        """Let the threads end."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def buffer(self) -> memoryview:
        """This thread's buffer of `PIECE_BYTES`."""
        buffer: memoryview | None = getattr(self._own, "buffer", None)
        if buffer is None:
            buffer = self._own.buffer = memoryview(bytearray(PIECE_BYTES))
        return buffer

    def each(self, work: Callable[[Sequence[Part]], Result], tasks: Sequence[Sequence[Part]],
             announce: Callable[[Sequence[Part]], None], waiting: deque[Future[Result]]) -> Iterator[Result]:
        """``work`` done for each task, results in order. ``waiting`` is for the caller to `settle` what he began."""
        if self.count < 2 or len(tasks) < 2:
            for task in tasks:
                yield work(task)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count, "stasis-lane")
        ahead = 2 * self.count + 2
        for task in tasks:
            announce(task)
            waiting.append(self._pool.submit(work, task))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def settle(waiting: deque[Future[Result]]) -> None:
    """Begin nothing more, and wait for what has begun: until then it uses the descriptor and the buffers."""
    for future in waiting:
        future.cancel()
    wait([future for future in waiting if not future.cancelled()])
    waiting.clear()


def tasks_of(runs: Sequence[Span]) -> list[list[Part]]:
    """The runs cut and gathered into tasks of about `TASK_BYTES`, in order; cuts are at multiples of `PIECE_BYTES`."""
    tasks: list[list[Part]] = []
    current: list[Part] = []
    room = TASK_BYTES
    for index, run in enumerate(runs):
        at = run.offset
        while at < run.end:
            length = min(run.end - at, max(PIECE_BYTES, room // PIECE_BYTES * PIECE_BYTES))
            current.append(Part(index, Span(at, length)))
            at += length
            room -= length
            if room < PIECE_BYTES:
                tasks.append(current)
                current, room = [], TASK_BYTES
    if current:
        tasks.append(current)
    return tasks


class Reader:
    """Looks at the pieces of one file. ``size_bytes`` is what the file had when it was opened."""

    def __init__(self, descriptor: int, size_bytes: int, lanes: Lanes) -> None:
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._lanes = lanes
        self._begun: list[deque[Any]] = []

    def look_at(self, runs: Sequence[Span], look: Callable[[memoryview], Found],
                onward: bool) -> Iterator[list[Looked[Found]]]:
        """As `rescue_tui.checkpoints.source.look_at`, several pieces at once."""
        failed: dict[int, int] = {}  # run: the lowest offset that can't be read

        def work(parts: Sequence[Part]) -> list[Looked[Found]]:
            buffer = self._lanes.buffer()
            return [piece for part in parts for piece in self._pieces(part, buffer, look, {} if onward else failed)]

        tasks = tasks_of(runs)
        if sum(run.length for run in runs) < WIDE_BYTES:
            for task in tasks:
                yield work(task)
            return
        ended: set[int] = set()
        waiting: deque[Future[list[Looked[Found]]]] = deque()
        self._begun.append(waiting)
        for found in self._lanes.each(work, tasks, self._announce, waiting):
            # A later part may have been read before an earlier one failed: a run's first trouble is its last piece.
            yield found if onward else [piece for piece in found if _counts(piece, ended)]
        self._begun.remove(waiting)

    def settle(self) -> None:
        """Wait for what was begun and not asked for to the end; before the descriptor is closed."""
        while self._begun:
            settle(self._begun.pop())

    def _announce(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if not self._at_hand(part.span.end - 1):
                os.posix_fadvise(self._descriptor, part.span.offset, part.span.length, os.POSIX_FADV_WILLNEED)

    def _at_hand(self, offset: int) -> bool:
        """True when a byte is in memory (preadv2(2), RWF_NOWAIT): announcing what is there costs a third of reading."""
        try:
            return os.preadv(self._descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) > 0
        except OSError:
            return False

    def _pieces(self, part: Part, buffer: memoryview, look: Callable[[memoryview], Found],
                failed: dict[int, int]) -> Iterator[Looked[Found]]:
        """``failed`` spares a medium that fails further reading of a run behind the place; it is noted there."""
        for start in range(part.span.offset, part.span.end, PIECE_BYTES):
            if start > failed.get(part.run, start):
                return
            length = min(PIECE_BYTES, part.span.end - start)
            view = buffer[:length]
            try:
                self.read_into(view, start)
            except (UnreadableBytes, EndOfBytes) as trouble:
                failed[part.run] = min(start, failed.get(part.run, start))
                yield Looked(part.run, start, length, None, trouble)
            else:
                yield Looked(part.run, start, length, look(view))

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill a view. Raises EndOfBytes behind the end, UnreadableBytes when the medium can't."""
        length = len(view)
        if offset < 0 or offset + length > self._size_bytes:
            raise EndOfBytes(offset, length, self._size_bytes)
        done = 0
        while done < length:
            try:
                count = os.preadv(self._descriptor, [view[done:]], offset + done)
            except OSError as error:
                raise UnreadableBytes(offset + done, length - done, os.strerror(error.errno or 0)) from error
            if not count:  # it shrank since it was opened
                raise EndOfBytes(offset, length, offset + done)
            done += count


def _counts(piece: Looked[Found], ended: set[int]) -> bool:
    if piece.run in ended:
        return False
    if piece.trouble is not None:
        ended.add(piece.run)
    return True
