"""Several threads on one file give what one gives: order, trouble where it is, nothing begun when nobody asks."""

from __future__ import annotations

import errno
import os
import random
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rescue_tui.checkpoints.checksums import crc32_of
from rescue_tui.checkpoints.source import BytesSource, EndOfBytes, Span, UnreadableBytes, Window, look_at
from rescue_tui.checkpoints.zeros import PayloadSpan, inspect_zeros
from rescue_tui.system import lanes
from rescue_tui.system.filetree import FileSource, FileTree

SIZE = 300_000
DATA = random.Random(4).randbytes(SIZE)
PIECE = 8192


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces, tasks and bounds so small that a small file is read by several threads."""
    monkeypatch.setattr(lanes, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(lanes, "TASK_BYTES", 3 * PIECE)
    monkeypatch.setattr(lanes, "WIDE_BYTES", 1)


@pytest.fixture
def source(small: None, tmp_path: Path) -> Iterator[FileSource]:
    (tmp_path / "x.bin").write_bytes(DATA)
    tree = FileTree(tmp_path, lanes=3)
    with tree.open("x.bin") as opened:
        yield opened
    tree.close()


@pytest.fixture
def bad_sector(monkeypatch: pytest.MonkeyPatch) -> int:
    """The medium gives nothing of 4096 bytes, and what lies before them in a short read."""
    at, real = 5 * PIECE + 4096, os.preadv

    def preadv(descriptor: int, views: list[memoryview], offset: int, flags: int = 0) -> int:
        if at <= offset < at + 4096:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        view = views[0][: at - offset] if offset < at else views[0]
        return real(descriptor, [view], offset, flags)

    monkeypatch.setattr(os, "preadv", preadv)
    return at


def test_pieces_come_in_order_and_are_all_of_the_runs(source: FileSource) -> None:
    runs = [Span(0, 5), Span(10, 0), Span(70, 5 * PIECE + 1), Span(100_000, 200_000)]
    pieces = list(look_at(source, runs, bytes))
    for index, run in enumerate(runs):
        own = [piece for piece in pieces if piece.run == index]
        assert b"".join(piece.found or b"" for piece in own) == DATA[run.offset : run.end]
    assert pieces == sorted(pieces, key=lambda piece: (piece.run, piece.offset))


@pytest.mark.parametrize("seed", range(20))
def test_sums_are_those_of_the_bytes(source: FileSource, seed: int) -> None:
    chance = random.Random(seed)
    runs = [Span(start, chance.randrange(SIZE - start + 1) >> chance.randrange(12))
            for start in (chance.randrange(SIZE) for _ in range(chance.randrange(1, 30)))]
    expected = [zlib.crc32(DATA[run.offset : run.end]) for run in runs]
    assert crc32_of(source, runs) == expected
    assert crc32_of(BytesSource(DATA), runs) == expected


def test_a_window_has_offsets_of_its_own(source: FileSource) -> None:
    window = Window(source, 1000, 100_000)
    assert crc32_of(window, [Span(0, 100_000)]) == [zlib.crc32(DATA[1000:101_000])]
    assert next(iter(look_at(window, [Span(50, 10)], bytes)))[1:4] == (50, 10, DATA[1050:1060])
    assert isinstance(crc32_of(window, [Span(99_999, 2)])[0], EndOfBytes)


def test_bytes_behind_the_end_are_trouble_of_their_run_alone(source: FileSource) -> None:
    before, behind, after = crc32_of(source, [Span(0, 9), Span(SIZE - 5 * PIECE, 6 * PIECE), Span(9, 9)])
    assert (before, after) == (zlib.crc32(DATA[:9]), zlib.crc32(DATA[9:18]))
    assert isinstance(behind, EndOfBytes)


def test_a_bad_sector_is_told_with_its_place_and_spoils_one_run(source: FileSource, bad_sector: int) -> None:
    runs = [Span(0, bad_sector), Span(bad_sector - 10, 20 * PIECE), Span(bad_sector + 4096, 50_000)]
    first, lost, last = crc32_of(source, runs)
    assert (first, last) == (zlib.crc32(DATA[:bad_sector]), zlib.crc32(DATA[bad_sector + 4096 :][:50_000]))
    assert isinstance(lost, UnreadableBytes)
    assert (lost.offset, lost.reason) == (bad_sector, "Input/output error")


def test_a_run_ends_with_its_first_trouble_or_goes_on_behind_it(source: FileSource, bad_sector: int) -> None:
    ended = list(look_at(source, [Span(0, SIZE)], len))
    assert [piece.offset for piece in ended] == [index * PIECE for index in range(6)]
    assert [piece.trouble is None for piece in ended] == [True] * 5 + [False]
    onward = list(look_at(source, [Span(0, SIZE)], len, onward=True))
    assert sum(piece.found or 0 for piece in onward) == SIZE - PIECE
    assert [piece.offset for piece in onward if piece.trouble] == [5 * PIECE]


def test_zeros_beside_a_bad_sector_are_seen(small: None, tmp_path: Path, bad_sector: int,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(b"\x01" * SIZE)
    data[8 * PIECE : 9 * PIECE] = bytes(PIECE)
    (tmp_path / "x.bin").write_bytes(data)
    real = os.pread

    def pread(descriptor: int, length: int, offset: int) -> bytes:
        if offset <= bad_sector < offset + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    tree = FileTree(tmp_path, lanes=3)
    with tree.open("x.bin") as source:
        report = inspect_zeros(source, [PayloadSpan(0, SIZE, ("w",))])
    tree.close()
    assert {(finding.code, finding.offset, finding.length) for finding in report.findings} == {
        ("unreadable", bad_sector, 4096), ("zero-run", 8 * PIECE, PIECE)}


def test_a_file_that_shrank_ends_where_it_ends_now(source: FileSource) -> None:
    with open(f"/proc/self/fd/{source.fileno()}", "r+b") as file:
        file.truncate(1000)
    (trouble,) = crc32_of(source, [Span(0, SIZE)])
    assert isinstance(trouble, EndOfBytes)
    assert trouble.size_bytes == 1000


def test_reads_are_told_to_the_caller_who_may_end_it(small: None, tmp_path: Path) -> None:
    class Enough(BaseException):
        pass

    (tmp_path / "x.bin").write_bytes(DATA)
    threads: set[str] = set()

    def heard(count: int) -> None:
        assert count
        threads.add(threading.current_thread().name)
        raise Enough

    tree = FileTree(tmp_path, heard, lanes=3)
    with tree.open("x.bin") as source, pytest.raises(Enough):
        crc32_of(source, [Span(0, SIZE)])
    assert threads == {threading.current_thread().name}
    with pytest.raises(UnreadableBytes, match="Bad file descriptor"):  # nothing reads on in a descriptor given back
        source.read_at(0, 1)
    tree.close()
    lane_threads = [thread for thread in threading.enumerate() if thread.name.startswith("stasis-lane")]
    for thread in lane_threads:
        thread.join(10)
        assert not thread.is_alive()
