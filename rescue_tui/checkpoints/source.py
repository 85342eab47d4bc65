"""Bounded, positioned reading: the only way in which a reader touches bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

CHUNK_BYTES = 1 << 20
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A run of bytes of one file."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        """The first offset behind it."""
        return self.offset + self.length


class EndOfBytes(Exception):
    """A read reached beyond the end of the bytes that there are. Readers turn it into an ``incomplete`` finding."""

    def __init__(self, offset: int, length: int, size_bytes: int) -> None:
        super().__init__(f"{length} bytes at {offset} were asked for, the file ends at {size_bytes}")
        self.offset = offset
        self.length = length
        self.size_bytes = size_bytes


class UnreadableBytes(Exception):
    """The medium could not give these bytes (EIO, ESTALE). Readers turn it into an ``unreadable`` finding."""

    def __init__(self, offset: int, length: int, reason: str) -> None:
        super().__init__(f"{length} bytes at {offset} can't be read: {reason}")
        self.offset = offset
        self.length = length
        self.reason = reason


class Source(Protocol):
    """The bytes of one file. Offsets and lengths are bytes from its beginning."""

    @property
    def name(self) -> str:
        """Path relative to the root of the scan, ``/`` between parts; bytes that are not UTF-8 are lone surrogates."""

    @property
    def size_bytes(self) -> int:
        """The logical size, taken once when the source was opened."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes. Raises `EndOfBytes` or `UnreadableBytes`; the caller bounds ``length``."""

    def chunks(self, offset: int, length: int) -> Iterator[bytes]:
        """The same bytes in pieces of at most `CHUNK_BYTES`, for what may be large."""

    def holes(self, offset: int, length: int) -> tuple[Span, ...]:
        """Parts of this run that the file system never allocated (SEEK_HOLE, lseek(2)); empty where unknown."""


class Looked(NamedTuple, Generic[Found]):
    """What a look at one piece of a run found; ``trouble`` says why there was nothing to look at, ``found`` then lies.

    ``run`` is the run's place among those asked for.
    """

    run: int
    offset: int
    length: int
    found: Found | None
    trouble: UnreadableBytes | EndOfBytes | None = None


class WideSource(Source, Protocol):
    """A source that looks at several pieces at once."""

    def look_at(self, runs: Sequence[Span], look: Callable[[memoryview], Found],
                onward: bool) -> Iterator[Looked[Found]]:
        """As the function `look_at`."""


def look_at(source: Source, runs: Sequence[Span], look: Callable[[memoryview], Found],
            onward: bool = False) -> Iterator[Looked[Found]]:
    """What ``look`` finds in every piece of the runs, in order: pieces have at most `CHUNK_BYTES`, all but the last of
    a run a multiple of 4 KiB.

    ``look`` gets a view that is only good during the call, perhaps in another thread. What can't be read is a piece
    with ``trouble``; it is the last of its run unless ``onward`` says to go on behind it.
    """
    shift, inner = 0, source
    while isinstance(inner, Window) and all(run.offset >= 0 and run.end <= inner.size_bytes for run in runs):
        start = inner.start
        runs = [Span(run.offset + start, run.length) for run in runs]
        shift, inner = shift + start, inner.outer
    # By the name: to ask a protocol takes as long as a small file's sum.
    wide: Callable[..., Iterator[Looked[Found]]] | None = getattr(inner, "look_at", None)
    for piece in wide(runs, look, onward) if wide else look_in_turn(inner, runs, look, onward):
        yield piece._replace(offset=piece.offset - shift) if shift else piece


def look_in_turn(source: Source, runs: Sequence[Span], look: Callable[[memoryview], Found],
                 onward: bool) -> Iterator[Looked[Found]]:
    """As `look_at`, one piece after the other."""
    for index, run in enumerate(runs):
        for start in range(run.offset, run.end, CHUNK_BYTES):
            length = min(CHUNK_BYTES, run.end - start)
            try:
                data = source.read_at(start, length)
            except (UnreadableBytes, EndOfBytes) as trouble:
                yield Looked(index, start, length, None, trouble)
                if not onward:
                    break
            else:
                yield Looked(index, start, length, look(memoryview(data)))


@dataclass(frozen=True, slots=True)
class BytesSource:
    """A source over bytes in memory: for small members and for tests."""

    data: bytes
    name: str = "memory"

    @property
    def size_bytes(self) -> int:
        """Length of the bytes."""
        return len(self.data)

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes, or `EndOfBytes`."""
        if offset < 0 or length < 0 or offset + length > len(self.data):
            raise EndOfBytes(offset, length, len(self.data))
        return self.data[offset : offset + length]

    def chunks(self, offset: int, length: int) -> Iterator[bytes]:
        """The same in pieces of at most `CHUNK_BYTES`."""
        for start in range(offset, offset + length, CHUNK_BYTES):
            yield self.read_at(start, min(CHUNK_BYTES, offset + length - start))

    def holes(self, offset: int, length: int) -> tuple[Span, ...]:
        """Memory has none."""
        del offset, length
        return ()


@dataclass(frozen=True, slots=True)
class Window:
    """A part of another source with offsets of its own: a member of a tar, a slice of a ``.distcp``.

    ``name`` stays the outer file's, so a finding names a file that exists; add ``start`` to an offset to report it.
    """

    outer: Source
    start: int
    size_bytes: int

    @property
    def name(self) -> str:
        """The outer file's name."""
        return self.outer.name

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes, or `EndOfBytes` at the window's end."""
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise EndOfBytes(offset, length, self.size_bytes)
        return self.outer.read_at(self.start + offset, length)

    def chunks(self, offset: int, length: int) -> Iterator[bytes]:
        """The same in pieces; ends with `EndOfBytes` at the window's end."""
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise EndOfBytes(offset, length, self.size_bytes)
        return self.outer.chunks(self.start + offset, length)

    def holes(self, offset: int, length: int) -> tuple[Span, ...]:
        """The outer file's holes, in the window's offsets."""
        holes = self.outer.holes(self.start + offset, length)
        return tuple(Span(hole.offset - self.start, hole.length) for hole in holes)
