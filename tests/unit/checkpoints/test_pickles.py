"""The inert walk of pickles: real ones in every protocol, damaged ones, and bombs."""

from __future__ import annotations

import argparse
import collections
import pickle
import pickletools
import tracemalloc
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints import pickles
from rescue_tui.checkpoints.pickles import Call, FaultKind, Global, Key, PersistentId, fields, paths, walk

PROTOCOLS = range(6)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text() | st.integers(), inner, max_size=5)
    | st.tuples(inner, inner) | st.tuples(inner), max_leaves=20)


def unhidden(value: Any) -> Any:
    """Dict keys that are kept but not hashed, back to values; bytes of old protocols are calls."""
    if isinstance(value, dict):
        return {unhidden(key): unhidden(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [unhidden(inner) for inner in value]
    if isinstance(value, tuple):
        return tuple(unhidden(inner) for inner in value)
    if isinstance(value, Key):
        return value.value
    if isinstance(value, Call) and value.dotted in ("__builtin__.bytes", "builtins.bytes") and not value.args:
        return b""
    return value


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=60, deadline=None)
@given(value=plain)
def test_plain_objects_come_back(protocol: int, value: object) -> None:
    raw = pickle.dumps(value, protocol)
    outcome = walk(raw + b"behind")
    assert outcome.fault is None
    assert outcome.end_offset == len(raw)
    assert unhidden(outcome.root) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_objects_and_containers(protocol: int) -> None:
    value = {"args": argparse.Namespace(size=4, inner=argparse.Namespace(x=[1])),
             "o": collections.OrderedDict(a=1, b=2),
             "d": collections.defaultdict(list, k=[3]), "c": collections.Counter("aab"), "s": {7}, "f": frozenset([8]),
             "p": PurePosixPath("a/b"), "z": 1 + 2j, "big": 1 << 200, "r": range(3), "by": b"\x00\xff" * 40}
    raw = pickle.dumps(value, protocol)
    outcome = walk(b"ahead" + raw, 5)
    root = outcome.root
    assert outcome.fault is None
    assert isinstance(root, dict)
    assert fields(root["args"])["size"] == 4
    assert fields(fields(root["args"])["inner"])["x"] == [1]
    assert (root["o"], root["d"], root["c"]) == ({"a": 1, "b": 2}, {"k": [3]}, {"a": 2, "b": 1})
    assert (root["big"], root["by"]) == (1 << 200, b"\x00\xff" * 40)
    assert root["s"].function.name == "set"
    assert root["s"].args == ([7],)
    assert Global("argparse", "Namespace") in outcome.globals
    place = outcome.places.get(id(root["by"]))
    if protocol >= 2:
        assert place is not None
        stored = (b"ahead" + raw)[place.offset:place.offset + place.length]
        assert (stored.decode().encode("latin-1") if place.utf8 else stored) == root["by"]


def test_the_opcodes_known_are_those_of_pickletools() -> None:
    known = {code for code in range(256) if pickles._TABLE[code] is not None or code == pickles._STOP}
    assert known == {ord(opcode.code) for opcode in pickletools.opcodes}


def test_nothing_is_executed(tmp_path: Path) -> None:
    target = tmp_path / "made"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return open, (str(target), "w")

    for protocol in PROTOCOLS:
        outcome = walk(pickle.dumps([Evil()], protocol))
        assert isinstance(outcome.root, list)
        assert outcome.root[0].args[0] == str(target)
    assert not target.exists()


def test_persistent_ids_are_listed_wherever_they_are() -> None:
    outcome = walk(b"\x80\x02X\x01\x00\x00\x00aQ0X\x01\x00\x00\x00bQ.")
    assert isinstance(outcome.root, PersistentId)
    assert [reference.value for reference in outcome.persistent] == ["a", "b"]


def test_every_cut_is_a_fault() -> None:
    raw = pickle.dumps({"a": [1, 2.5, "x" * 300], "n": argparse.Namespace(k=b"abc")}, 4)
    for length in range(len(raw)):
        outcome = walk(raw[:length])
        assert outcome.fault is not None
        assert outcome.fault.kind is FaultKind.CUT
        assert outcome.root is None


@pytest.mark.parametrize(("raw", "kind"), [
    (b"", FaultKind.CUT), (b"\x00", FaultKind.MALFORMED), (b".", FaultKind.MALFORMED), (b"(.", FaultKind.MALFORMED),
    (b"NN.", FaultKind.MALFORMED), (b"h\x05.", FaultKind.MALFORMED), (b"\x80\x09N.", FaultKind.MALFORMED),
    (b"X\xff\xff\xff\x7fab", FaultKind.CUT), (b"\x8d" + b"\xff" * 8, FaultKind.CUT),
    (b"T\xff\xff\xff\xff.", FaultKind.CUT),
    (b"\x8b\xff\xff\xff\x7f.", FaultKind.LIMIT), (b"L" + b"9" * 5000 + b"L\n.", FaultKind.LIMIT),
    (b"X\x01\x00\x00\x00\xff.", FaultKind.MALFORMED), (b"(" * 5000, FaultKind.LIMIT), (b"]Na", FaultKind.CUT),
    (b"NNa.", FaultKind.MALFORMED), (b"}(Nu.", FaultKind.MALFORMED), (b"NR.", FaultKind.MALFORMED),
    (b"\x95" + b"\xff" * 8 + b"N.", FaultKind.CUT), (b"\x97.", FaultKind.MALFORMED),
    (b"cos\n" + b"x" * 70_000, FaultKind.MALFORMED),
    (b"I1_0x\n.", FaultKind.MALFORMED), (b"Fx\n.", FaultKind.MALFORMED), (b"Sx\n.", FaultKind.MALFORMED),
    (b"V\\ud8\n.", FaultKind.MALFORMED), (b"NNN\x93.", FaultKind.MALFORMED),
])
def test_faults(raw: bytes, kind: FaultKind) -> None:
    outcome = walk(raw)
    assert outcome.fault is not None
    assert outcome.fault.kind is kind


def doubling(levels: int) -> bytes:
    """Each tuple holds the one before it twice: 2 ** levels paths, a few bytes each."""
    return b"]q\x00" + b"".join(b"0h%ch%c\x86q%c" % (level, level, level + 1) for level in range(levels)) + b"."


def cyclic() -> bytes:
    return b"]q\x00h\x00ah\x00h\x00\x86a."


@pytest.mark.parametrize("bomb", [
    doubling(200), cyclic(), b"\x80\x02)" + b"\x85" * 100_000 + b".", b"]" * 100_000 + b"a" * 99_999 + b".",
    b"}q\x00" + b"}" * 50_000 + b"Ns" * 1, b"}" + doubling(100)[:-1] + b"Ns.", b"}h\x00", b"N" + b"2" * 100_000,
    b"K\x01" + b"2" * 1000 + b"(" + b"2" * 10,
], ids=["doubling", "cyclic", "tuples", "lists", "dicts", "keys", "memo", "dup", "marks"])
def test_bombs_are_walked_and_looked_at_within_bounds(bomb: bytes) -> None:
    outcome = walk(bomb)
    assert sum(1 for _ in paths(outcome.root, most=10_000)) <= 10_001
    assert outcome.opcodes <= len(bomb)


def test_a_text_encoded_over_and_over_stays_small() -> None:
    text = b"X" + (10_000).to_bytes(4, "little") + b"a" * 10_000 + b"q\x00"
    again = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R"
    tracemalloc.start()
    outcome = walk(b"(" + text + again * 1000 + b"l.")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outcome.fault is not None
    assert outcome.fault.kind is FaultKind.LIMIT
    assert peak < 1 << 20


def test_keys_that_would_be_slow_to_hash_are_kept_aside() -> None:
    nested = doubling(64)[:-1]
    outcome = walk(b"}" + nested + b"NsG\x3f\xf8\x00\x00\x00\x00\x00\x00NsK\x05\x85NsK\x05K\x06s.")
    assert outcome.fault is None
    assert isinstance(outcome.root, dict)
    keys = list(outcome.root)
    assert [type(key) for key in keys] == [Key, Key, tuple, int]
    assert outcome.root[(5,)] is None


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=1024))
def test_random_bytes(raw: bytes) -> None:
    outcome = walk(raw)
    assert (outcome.fault is None) or outcome.root is None
    assert outcome.end_offset <= len(raw)
    assert sum(1 for _ in paths(outcome.root, most=1000)) <= 1001


OPCODES = st.sampled_from([opcode.code.encode("latin-1") for opcode in pickletools.opcodes])


@settings(max_examples=500, deadline=None)
@given(st.lists(OPCODES | st.binary(max_size=6) | st.just(b"\x00\x00\x00"), max_size=60))
def test_random_opcodes(parts: list[bytes]) -> None:
    raw = b"".join(parts)
    outcome = walk(raw)
    assert (outcome.fault is None) == (outcome.end_offset > 0 and outcome.fault is None)
    assert sum(1 for _ in paths(outcome.root, most=1000)) <= 1001
