"""Sorted tables: whole, in several blocks, compressed, cut and flipped everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints.source import BytesSource
from rescue_tui.checkpoints.sstable import MAGIC, Table, read_table
from rescue_tui.checkpoints.wire import WireError, fields, signed, varint
from tests.support.ckpt import sstables

ROWS = [(f"layer/{number:04d}/w".encode(), bytes((number % 251,)) * (number % 9)) for number in range(300)]


def read(content: bytes) -> Table:
    return read_table(BytesSource(content))


@pytest.mark.parametrize(("per_block", "snappy"), [(1000, False), (40, False), (40, True), (1, False)])
def test_all_rows_are_proven(per_block: int, snappy: bool) -> None:
    found = read(sstables.table(ROWS, per_block, snappy))
    assert (found.whole, found.faults) == (True, ())
    assert [(row.key, row.value, row.proven) for row in found.rows] == [(*row, True) for row in ROWS]


def test_a_damaged_block_costs_only_its_own_proof() -> None:
    content = bytearray(sstables.table(ROWS, 40))
    at = content.index(b"layer/0080/w") + 30
    content[at] ^= 1
    found = read(bytes(content))
    assert [fault.code for fault in found.faults] == ["crc-mismatch"]
    proven = [(row.key, row.value) for row in found.rows if row.proven]
    assert proven == [*ROWS[:80], *ROWS[120:]]
    assert len(found.rows) > len(proven)
    assert not found.whole


@pytest.mark.parametrize("per_block", [1000, 40])
def test_a_cut_table_keeps_its_whole_blocks(per_block: int) -> None:
    content = sstables.table(ROWS, per_block)
    for at in range(0, len(content), 17):
        found = read(content[:at])
        assert found.faults
        assert found.faults[-1].cut
        assert [(row.key, row.value) for row in found.rows] == ROWS[: len(found.rows)]
    found = read(content[:-1])
    assert (len(found.rows), found.whole, all(row.proven for row in found.rows)) == (300, True, True)


@pytest.mark.parametrize("per_block", [1000, 40])
def test_no_flip_passes(per_block: int) -> None:
    rows = ROWS[:60]
    content = sstables.table(rows, per_block)
    padding = range(len(content) - 48, len(content) - len(MAGIC))
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        found = read(bytes(changed))
        proven = [(row.key, row.value) for row in found.rows if row.proven]
        assert set(proven) <= set(rows)
        assert found.faults or (at in padding and proven == rows), at


def test_a_snappy_bomb_is_not_unpacked() -> None:
    content = bytearray(sstables.table([(b"a" * 3, bytes(3000))], snappy=True))
    stored = content.index(b"\x00\x03")
    assert stored >= 0
    bomb = sstables.varint(1 << 40) + b"\x00"
    found = read(bytes(bomb) + bytes(content))
    assert not any(row.proven for row in found.rows)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_random_bytes_neither_crash_nor_are_proven(content: bytes, footer: bool) -> None:
    found = read(content + MAGIC if footer else content)
    assert not any(row.proven for row in found.rows)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80))
def test_random_messages_are_read_or_refused(message: bytes) -> None:
    try:
        found = list(fields(message))
    except WireError:
        return
    assert all(field.number > 0 for field in found)


@given(st.integers(0, (1 << 64) - 1))
def test_varints_come_back(value: int) -> None:
    assert varint(sstables.varint(value), 0) == (value, len(sstables.varint(value)))
    assert signed(value) in {value, value - (1 << 64)}
