"""Every sample of the handed corpus, made by the real writers and damaged as crashes damage them, and its decoys."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rescue_tui.checkpoints.model import Checkpoint, Options, Proof
from rescue_tui.checkpoints.scan import Scan, scan
from rescue_tui.cli_checkpoints import scan_document
from rescue_tui.jobs.scanning import ScanAnswer
from rescue_tui.system.filetree import FileTree
from tests.support.source_rules import ROOT

CORPUS = ROOT / "tests/data/checkpoints/handed.tar"
Row = Mapping[str, Any]


def _expected() -> dict[str, list[Row]]:
    """Rows by case; read from the tar, so that every case is a test of its own."""
    done = subprocess.run(["tar", "-xOf", str(CORPUS), "handed/expected.json"], check=True, capture_output=True)
    cases: dict[str, list[Row]] = defaultdict(list)
    for row in json.loads(done.stdout):
        cases[row["case"]].append(row)
    return dict(cases)


EXPECTED = _expected()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterable[Path]:
    """The corpus as tar unpacks it: with its holes and its times."""
    place = tmp_path_factory.mktemp("handed")
    subprocess.run(["tar", "-xf", str(CORPUS), "-C", str(place)], check=True)
    yield place / "handed"
    shutil.rmtree(place)


def _words(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _row(found: Scan, row: Row) -> Checkpoint | None:
    by_path = {checkpoint.path: checkpoint for checkpoint in found.checkpoints}
    return next((by_path[path] for path in (row["path"], *row.get("path_alt", ())) if path in by_path), None)


def _told(checkpoint: Checkpoint) -> str:
    return json.dumps([[finding.code, finding.summary, finding.file, finding.tensors]
                       for finding in checkpoint.reading.findings]).lower()


def _plain(name: str) -> str:
    return name.replace("/", ".")


def _check(found: Scan, row: Row) -> None:
    hit = _row(found, row)
    assert hit is not None, f"no row for {row['path']}: {[checkpoint.path for checkpoint in found.checkpoints]}"
    told = _told(hit)
    assert hit.verdict.value in _words(row["verdict"]), f"{hit.verdict}: {told}"
    if row["format"] is not None:
        assert hit.reading.format in _words(row["format"])
    for text in row["must_mention"]:
        assert text.lower() in told
    choices = row.get("must_mention_any") or ()
    assert not choices or any(text.lower() in told for text in choices), told
    good = [_plain(tensor.name) for tensor in hit.reading.tensors if tensor.proof is not Proof.DAMAGED]
    for name in map(_plain, row["good_tensors"] or ()):
        assert any(have == name or have.endswith(f".{name}") for have in good), f"{name} is not good: {good}"


@pytest.mark.parametrize("case", sorted(EXPECTED))
def test_case_is_answered_as_expected(corpus: Path, case: str) -> None:
    found = scan(FileTree(corpus / case), Options(), case)
    rows = [row for row in EXPECTED[case] if not row.get("decoy")]
    for row in rows:
        _check(found, row)
        if "newest_good" in row:
            assert found.newest_good == row["newest_good"]
    for row in EXPECTED[case]:
        hit = _row(found, row)
        assert not row.get("decoy") or hit is None or hit.verdict.value in row["allow"]
    expected = {path for row in EXPECTED[case] for path in (row["path"], *row.get("path_alt", ()))}
    assert {checkpoint.path for checkpoint in found.checkpoints} <= expected


def test_every_case_yields_a_document_that_json_can_write(corpus: Path) -> None:
    found = scan(FileTree(corpus), Options())
    text = json.loads(json.dumps(scan_document(ScanAnswer("handed", found))))
    assert text["schema"] == "stasis.checkpoints/1"
    assert len(text["checkpoints"]) == len(found.checkpoints) >= 60
    assert all(set(row) >= {"path", "format", "verdict", "step", "saved_at", "size_bytes", "tensors", "members",
                            "findings", "salvageable"} for row in text["checkpoints"])


@pytest.mark.parametrize("case", ["torch-zip-good", "safetensors-good", "npz-good", "tf-bundle-good", "dcp-good",
                                  "megatron-good", "deepspeed-good", "hf-trainer-good", "orbax-good", "gguf-good"])
def test_undamaged_saves_have_no_warnings(corpus: Path, case: str) -> None:
    found = scan(FileTree(corpus / case), Options(), case)
    assert [finding.summary for checkpoint in found.checkpoints for finding in checkpoint.reading.findings
            if finding.severity.value != "info"] == []
