"""OCDBT databases of the real writer, and nodes that can't be."""

from __future__ import annotations

import struct
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints.checksums import crc32c
from rescue_tui.checkpoints.ocdbt import MANIFEST, Database, read_database
from rescue_tui.checkpoints.tree import MemoryTree, Tree
from tests.support.ckpt import premade
from tests.support.ckpt.premade import Sample, cut, flip

NAMES = ("raw", "packed", "numbered")


@cache
def sample() -> Sample:
    return premade.load("ocdbt-deep")


def contents(tree: Tree, database: Database) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for key, value in database.values.items():
        if value.inline is not None:
            found[key] = value.inline
            continue
        with tree.open(value.file) as source:
            found[key] = source.read_at(value.offset, value.length)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_a_database_of_several_levels(name: str) -> None:
    database = read_database(sample().tree, name)
    assert (database.whole, database.faults) == (True, [])
    assert contents(sample().tree, database) == {key: value.content for key, value in sample().values.items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_lost_node_costs_its_keys_and_no_others(name: str) -> None:
    saved = sample()
    whole = read_database(saved.tree, name)
    leaves = {(value.file, value.offset, value.length) for value in whole.values.values() if value.inline is not None}
    for path, offset, length in sorted(leaves)[::3]:
        tree = saved.changed(path, flip(offset + length // 2))
        database = read_database(tree, name)
        assert not database.whole
        assert [(fault.code, fault.file, fault.offset) for fault in database.faults] == [("crc-mismatch", path, offset)]
        lost = whole.values.keys() - database.values.keys()
        assert lost == {key for key in lost if whole.values[key][:3] == (path, offset, length)} or lost
        good = contents(tree, database)
        assert all(good[key] == saved.values[key].content for key in good)


@pytest.mark.parametrize("name", NAMES)
def test_no_bit_of_a_manifest_may_change(name: str) -> None:
    saved = sample()
    path = f"{name}/manifest.0000000000000005" if name == "numbered" else f"{name}/{MANIFEST}"
    for at in range(len(saved.files[path])):
        assert not read_database(saved.changed(path, flip(at, at % 8)), name).whole
    for at in range(len(saved.files[path])):
        database = read_database(saved.changed(path, cut(at)), name)
        assert not database.whole
        assert all(fault.cut for fault in database.faults if at < 12 or name == "raw")


def sealed(magic: int, body: bytes, compression: int = 0) -> bytes:
    """A node with a right length and checksum around any body."""
    head = struct.pack(">I", magic)
    inner = bytes((0, compression)) + body
    whole = head + struct.pack("<Q", len(head) + 8 + len(inner) + 4) + inner
    return whole + struct.pack("<I", crc32c((whole,)))


CONFIG = bytes(16) + b"\x00" + b"\x10" + b"\x80\x08" + b"\x04" + b"\x00"


def manifest(path: bytes, length: int, height: int = 0) -> bytes:
    table = bytes((1, len(path), 0)) + path
    version = bytes((1, 1, height, 0, 0, length, 0, 0, 0)) + bytes(8)
    return sealed(0x0CDB3A2A, CONFIG + table + version + b"\x00")


def test_a_path_out_of_the_database_is_not_followed() -> None:
    for path in (b"../secret", b"/etc/passwd", b"d/../../x"):
        database = read_database(MemoryTree({"db/" + MANIFEST: manifest(path, 50), "secret": bytes(60)}), "db")
        assert [fault.code for fault in database.faults] == ["path-escape"]


@pytest.mark.parametrize("body", [
    b"\x00\x00\xff\xff\xff\xff\x0f", b"\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x00\x00\x00", b"",
    b"\x00\x00\x01\xff\xff\x7f", b"\x01\x00\x01\x00\x05",
])
def test_nodes_that_declare_what_they_do_not_have(body: bytes) -> None:
    node = sealed(0x0CDB20DE, body)
    database = read_database(MemoryTree({MANIFEST: manifest(b"d", len(node)), "d": node}), "")
    assert not database.whole
    assert len(database.faults) == 1
    assert database.faults[0].code == "bad-node"


def test_a_bomb_is_not_unpacked() -> None:
    zstandard = pytest.importorskip("zstandard")
    bomb = sealed(0x0CDB3A2A, zstandard.ZstdCompressor(level=19).compress(bytes(256 << 20)), 1)
    database = read_database(MemoryTree({MANIFEST: bomb}), "")
    assert [fault.code for fault in database.faults] == ["bad-node"]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=120), st.sampled_from([0x0CDB3A2A, 0x0CDB20DE]), st.booleans())
def test_any_body_is_read_without_a_crash(body: bytes, magic: int, config: bool) -> None:
    node = sealed(magic, CONFIG + body if config else body)
    files = {MANIFEST: node if magic == 0x0CDB3A2A else manifest(b"d", min(127, len(node))), "d": node}
    database = read_database(MemoryTree(files), "")
    assert database.whole == (not database.faults)
