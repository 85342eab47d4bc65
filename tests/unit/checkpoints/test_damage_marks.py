"""What is said of a save some of whose bytes were never read: pure, with made-up readings."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints.damage import BAD, MAX_FINDINGS, PROVEN, UNKNOWN, UNREAD, marked
from rescue_tui.checkpoints.model import Block, CheckpointFinding, Options, Proof, Reading, TensorEntry, Verdict
from rescue_tui.checkpoints.salvage import select
from rescue_tui.checkpoints.scan import Scan, scan
from rescue_tui.checkpoints.source import UnreadableBytes
from rescue_tui.checkpoints.tree import MemoryTree
from rescue_tui.core.damage import Loss, PlaceUnknown
from rescue_tui.core.finding import Severity
from tests.support.ckpt.saves import safetensors_file, torch_file

FILE = "run/model.pt"


@dataclass
class LossyTree:
    """Knows losses by path; other paths have none, or raise."""

    lost: Mapping[str, tuple[Loss, ...]] = field(default_factory=dict)
    raising: Mapping[str, Exception] = field(default_factory=dict)

    def losses(self, path: str) -> tuple[Loss, ...]:
        if path in self.raising:
            raise self.raising[path]
        return self.lost.get(path, ())


def tensor(name: str, offset: int, length: int, proof: Proof, file: str = FILE) -> TensorEntry:
    """A vector of bytes."""
    return TensorEntry(name, "uint8", (length,), (Block(file, offset, length, (0,), (length,), proof),), proof)


def reading(*tensors: TensorEntry, covered: bool = False, findings: tuple[CheckpointFinding, ...] = ()) -> Reading:
    """A save of one file."""
    return Reading("torch-zip", findings, tensors, covered, members=(FILE,))


def told(found: Reading) -> list[tuple[str, int | None, int | None, tuple[str, ...]]]:
    """Code, offset, length and tensors of each finding."""
    return [(finding.code, finding.offset, finding.length, finding.tensors) for finding in found.findings]


def test_a_tree_without_a_map_and_a_map_without_losses_change_nothing() -> None:
    before = reading(tensor("a", 0, 100, Proof.UNVERIFIABLE))
    assert marked(MemoryTree({}), before) is before
    assert marked(LossyTree(), before) is before


def test_what_no_checksum_covers_is_not_there() -> None:
    found = marked(LossyTree({FILE: (Loss(40, 20, True), Loss(200, 10, False))}), reading(
        tensor("a", 0, 50, Proof.UNVERIFIABLE), tensor("b", 50, 50, Proof.UNVERIFIABLE),
        tensor("view", 45, 30, Proof.UNVERIFIABLE), tensor("far", 150, 100, Proof.UNVERIFIABLE),
        tensor("good", 100, 50, Proof.UNVERIFIABLE)))
    assert told(found) == [(BAD, 40, 20, ("a", "b", "view")), (UNREAD, 200, 10, ("far",))]
    assert found.verdict is Verdict.INCOMPLETE
    assert {entry.name for entry in found.tensors if entry.proof is Proof.DAMAGED} == {"a", "b", "view", "far"}
    assert found.tensors[-1].proof is Proof.UNVERIFIABLE


def test_a_checksum_that_matches_over_them_is_believed_and_noted() -> None:
    found = marked(LossyTree({FILE: (Loss(10, 20, True),)}),
                   reading(tensor("a", 0, 50, Proof.VERIFIED), covered=True))
    assert told(found) == [(PROVEN, 10, 20, ("a",))]
    assert found.findings[0].severity is Severity.INFO
    assert (found.verdict, found.tensors[0].proof) == (Verdict.VERIFIED, Proof.VERIFIED)


def test_bytes_between_tensors_are_proven_by_nothing_but_a_sum_of_the_whole_file() -> None:
    tree = LossyTree({FILE: (Loss(40, 30, False),)})
    tensors = tensor("a", 0, 50, Proof.VERIFIED), tensor("b", 60, 50, Proof.VERIFIED)
    found = marked(tree, reading(*tensors, covered=True))
    assert told(found) == [(UNREAD, 50, 10, ()), (PROVEN, 40, 30, ("a", "b"))]
    assert found.verdict is Verdict.INCOMPLETE
    assert all(entry.proof is Proof.VERIFIED for entry in found.tensors)
    whole = CheckpointFinding(Severity.INFO, "sha256-matches", "It matches.", file=FILE)
    found = marked(tree, reading(*tensors, covered=True, findings=(whole,)))
    assert told(found)[1:] == [(PROVEN, 40, 30, ("a", "b"))]
    assert found.verdict is Verdict.VERIFIED


def test_members_without_tensors_count() -> None:
    found = marked(LossyTree({"run/trainer_state.json": (Loss(0, 9, True),)}),
                   reading(tensor("a", 0, 50, Proof.VERIFIED), covered=True), ["run/trainer_state.json"])
    assert [(finding.code, finding.file) for finding in found.findings] == [(BAD, "run/trainer_state.json")]
    assert found.verdict is Verdict.INCOMPLETE


@pytest.mark.parametrize(("covered", "checked", "verdict"), [
    (False, False, Verdict.INCOMPLETE), (False, True, Verdict.INTACT), (True, False, Verdict.VERIFIED)])
def test_where_the_place_is_unknown_only_proof_counts(covered: bool, checked: bool, verdict: Verdict) -> None:
    found = marked(LossyTree(raising={FILE: PlaceUnknown("nobody knows", checked)}), reading(covered=covered))
    assert [finding.code for finding in found.findings] == [UNKNOWN]
    assert found.verdict is verdict


def test_a_member_that_can_not_be_opened_was_told_of_by_its_reader() -> None:
    before = reading(tensor("a", 0, 50, Proof.UNVERIFIABLE))
    assert marked(LossyTree(raising={FILE: UnreadableBytes(0, 0, "it is no regular file")}), before) is before


def test_many_places_are_summed_up_with_every_tensor_named() -> None:
    count = 3 * MAX_FINDINGS
    found = marked(LossyTree({FILE: tuple(Loss(10 * at, 5, True) for at in range(count))}),
                   reading(*(tensor(f"t{at}", 10 * at, 10, Proof.UNVERIFIABLE) for at in range(count))))
    assert len(found.findings) == MAX_FINDINGS + 1
    assert {name for finding in found.findings for name in finding.tensors} == {f"t{at}" for at in range(count)}
    assert "640 bytes in 128 more places" in found.findings[-1].summary
    assert all(entry.proof is Proof.DAMAGED for entry in found.tensors)


losses = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20), st.booleans()), max_size=10)
blocks = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60), st.sampled_from(Proof)), max_size=10)


@given(losses, blocks)
def test_every_lost_byte_is_told_and_no_tensor_is_too_good(
        gaps: list[tuple[int, int, bool]], places: list[tuple[int, int, Proof]]) -> None:
    lost, at = [], 0
    for gap, length, bad in gaps:
        lost.append(Loss(at + gap, length, bad))
        at += gap + length
    before = reading(*(tensor(f"t{number}", *place) for number, place in enumerate(places)), covered=True)
    found = marked(LossyTree({FILE: tuple(lost)}), before)
    missing = {at for loss in lost for at in range(loss.offset, loss.end)}
    told_bytes: set[int] = set()
    for finding in found.findings:
        assert finding.offset is not None
        assert finding.length is not None
        told_bytes |= set(range(finding.offset, finding.offset + finding.length))
    assert missing <= told_bytes
    for was, now in zip(before.tensors, found.tensors, strict=True):
        block = was.blocks[0]
        hit = bool(missing & set(range(block.offset, block.offset + block.length)))
        wanted = Proof.DAMAGED if hit and was.proof is not Proof.VERIFIED else was.proof
        assert now.proof is now.blocks[0].proof is wanted
        if hit:
            assert any(was.name in finding.tensors for finding in found.findings)
    unproven = missing - {byte for was in before.tensors if was.proof is Proof.VERIFIED
                          for byte in range(was.blocks[0].offset, was.blocks[0].offset + was.blocks[0].length)}
    assert (found.verdict is Verdict.INCOMPLETE) == bool(unproven)


# With the readers of formats -----------------------------------------------------------------------------------------
class LossyMemory(MemoryTree):
    """Files in memory; what is lost of them is zeros."""

    def losses(self, path: str) -> tuple[Loss, ...]:
        return LOST.get(path, ())


LOST: dict[str, tuple[Loss, ...]] = {}


def judged(monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, *lost: Loss) -> Scan:
    """The scan of one file of which this is lost."""
    content = bytearray(data)
    for loss in lost:
        content[loss.offset:loss.end] = bytes(loss.length)
    monkeypatch.setitem(LOST, name, lost)
    return scan(LossyMemory({name: bytes(content)}), Options())


def test_zeros_in_a_safetensors_file_that_look_like_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    data = safetensors_file({"a": 4000, "b": 4000})
    begin = len(data) - 32000
    found = judged(monkeypatch, "m.safetensors", data, Loss(begin + 17024, 512, True))
    (row,) = found.checkpoints
    assert (row.verdict, found.newest_good) == (Verdict.INCOMPLETE, None)
    assert [(one.name, one.code) for one in select(row).lost] == [("b", BAD)]
    assert [kept.name for kept in select(row).kept] == ["a"]


def test_a_lost_header_is_told_beside_what_the_reader_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = safetensors_file({f"layer.{number}": 10 for number in range(40)})
    (length,) = struct.unpack_from("<Q", data)
    assert json.loads(data[8:8 + length])
    (row,) = judged(monkeypatch, "m.safetensors", data, Loss(512, 512, False)).checkpoints
    assert row.verdict in {Verdict.CORRUPT, Verdict.INCOMPLETE}
    assert [(finding.code, finding.offset, finding.length) for finding in row.reading.findings
            if finding.code == UNREAD] == [(UNREAD, 512, 512)]


def test_zeros_that_were_saved_are_proven_by_their_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    data = torch_file({"zeros": torch.zeros(8192), "ones": torch.ones(8192)})
    (row,) = judged(monkeypatch, "m.pt", data).checkpoints
    zeros = next(entry for entry in row.reading.tensors if entry.name == "zeros").blocks[0]
    (row,) = judged(monkeypatch, "m.pt", data, Loss(zeros.offset + 512, 512, True)).checkpoints
    assert row.verdict is Verdict.VERIFIED
    assert [finding.code for finding in row.reading.findings if finding.code in {BAD, PROVEN}] == [PROVEN]
    ones = next(entry for entry in row.reading.tensors if entry.name == "ones").blocks[0]
    (row,) = judged(monkeypatch, "m.pt", data, Loss(ones.offset + 512, 512, True)).checkpoints
    assert row.verdict is Verdict.CORRUPT
    assert [finding.tensors for finding in row.reading.findings if finding.code == BAD] == [("ones",)]


def test_a_file_of_which_nothing_was_read_is_empty_for_that_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    data = safetensors_file({"a": 4000})
    found = judged(monkeypatch, "m.safetensors", data, Loss(0, len(data), False))
    (row,) = found.checkpoints
    assert row.verdict is Verdict.EMPTY
    assert [(finding.offset, finding.length) for finding in row.reading.findings if finding.code == UNREAD] == [
        (0, len(data))]
    assert found.newest_good is None


def test_every_member_of_a_save_of_several_files_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = [f"m/model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    weights = {"a": shards[0][2:], "b": shards[1][2:]}
    files = {shards[0]: safetensors_file({"a": 4000}), shards[1]: safetensors_file({"b": 4000}, fill=9),
             "m/model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": weights}).encode()}
    (row,) = scan(LossyMemory(files), Options()).checkpoints
    assert row.verdict is Verdict.INTACT
    monkeypatch.setitem(LOST, shards[1], (Loss(2048, 512, True),))
    (row,) = scan(LossyMemory(files), Options()).checkpoints
    assert row.verdict is Verdict.INCOMPLETE
    assert [(one.name, one.code) for one in select(row).lost] == [("b", BAD)]
    monkeypatch.setitem(LOST, shards[1], ())
    monkeypatch.setitem(LOST, "m/model.safetensors.index.json", (Loss(0, 512, False),))
    (row,) = scan(LossyMemory(files), Options()).checkpoints
    assert [(finding.code, finding.file) for finding in row.reading.findings if finding.code == UNREAD] == [
        (UNREAD, "m/model.safetensors.index.json")]
    assert row.verdict is Verdict.INCOMPLETE


def torch_state(legacy: bool) -> bytes:
    """A save of torch with zeros in it, as a zip or in the old form."""
    torch = pytest.importorskip("torch")
    stream = io.BytesIO()
    numbers = torch.arange(1, 2049, dtype=torch.float32)
    torch.save({"a": numbers, "zeros": torch.zeros(2048), "b": numbers * 3, "view": numbers[100:200], "step": 7},
               stream, _use_new_zipfile_serialization=not legacy)
    return stream.getvalue()


def npz_file() -> bytes:
    """Two arrays, one of them zeros."""
    numpy = pytest.importorskip("numpy")
    stream = io.BytesIO()
    numpy.savez(stream, a=numpy.arange(1, 4097), zeros=numpy.zeros(2048))
    return stream.getvalue()


@pytest.mark.parametrize(("name", "make"), [
    ("m.safetensors", lambda: safetensors_file({"a": 2048, "b": 1000, "c": 3000})),
    ("m.pt", lambda: torch_state(False)), ("m.bin", lambda: torch_state(True)), ("m.npz", npz_file),
], ids=["safetensors", "torch-zip", "torch-legacy", "npz"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_called_good_is_what_was_saved(name: str, make: Callable[[], bytes], data: st.DataObject) -> None:
    original = make()
    sectors = -(-len(original) // 512)
    lost = sorted(data.draw(st.sets(st.integers(0, sectors - 1), max_size=4)))
    losses = tuple(Loss(at * 512, min(512, len(original) - at * 512), at % 2 == 0) for at in lost)
    content = bytearray(original)
    for loss in losses:
        content[loss.offset:loss.end] = bytes(loss.length)
    LOST[name] = losses
    try:
        rows = scan(LossyMemory({name: bytes(content)}), Options()).checkpoints
    finally:
        del LOST[name]
    good = [row for row in rows if row.verdict.trusted]
    assert good or losses
    # Where all that was lost was zeros anyway, a checksum may prove it; nothing else makes a save with losses good.
    assert not (good and losses) or (bytes(content) == original and good[0].verdict is Verdict.VERIFIED)
    for row in rows:
        for kept in select(row).kept:
            for block in kept.tensor.blocks:
                end = block.offset + block.length
                assert content[block.offset:end] == original[block.offset:end], kept.name
                lies_on_losses = any(loss.offset < end and loss.end > block.offset for loss in losses)
                assert not lies_on_losses or kept.tensor.proof is Proof.VERIFIED
