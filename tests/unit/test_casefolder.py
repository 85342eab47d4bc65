"""The case folder: manifest, exclusion, what a begun image is bound to; files that survive a power cut."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.errors import FormatError, PolicyRefusal
from rescue_tui.jobs.casefolder import (
    CaseFolder,
    case_folders,
    format_manifest,
    images_in,
    locate_begun,
    parse_manifest,
    read_json,
)
from rescue_tui.jobs.hashing import HashStoppedError, sha256_of
from rescue_tui.system.attachment import Attachment
from rescue_tui.system.durable import read_or_none, replace_file, tail_of
from tests.support.cases import finished_case
from tests.support.imaging import a_disk

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0\r"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", ".."))


@given(st.dictionaries(names, st.binary().map(lambda data: hashlib.sha256(data).hexdigest()), max_size=8))
def test_manifest_round_trip(entries: dict[str, str]) -> None:
    assert parse_manifest(format_manifest(entries)) == entries


@pytest.mark.parametrize("line", [
    "xyz", f"{'0' * 63}  a", f"{'0' * 64} a", f"{'0' * 64}  ", f"{'0' * 64}  /etc/passwd", f"{'0' * 64}  ../x",
    f"{'g' * 64}  a", f"{'0' * 64}  a/../../b"])
def test_manifest_lines_that_are_refused(line: str) -> None:
    with pytest.raises(FormatError, match="Line 1"):
        parse_manifest(line.encode())


async def test_a_second_source_keeps_the_entries_of_the_first(tmp_path: Path) -> None:
    first = await finished_case(tmp_path)
    second = await finished_case(tmp_path, a_disk("ff"))
    listed = CaseFolder(first.path.parent).manifest()
    assert {name.split("/")[0] for name in listed} == {"case.json", first.path.name, second.path.name}
    assert [folder.path for folder in case_folders(tmp_path)[0].sources()] == [first.path, second.path]
    case = read_json(first.path.parent / "case.json")
    assert isinstance(case, dict)
    assert [source["identity"] for source in case["sources"]] == ["nvme-eui64:0123456789abcdef", "nvme-eui64:ff"]


def test_one_worker_a_folder(tmp_path: Path) -> None:
    folder = CaseFolder(tmp_path / "case").source(a_disk().id)
    with folder.exclusively(), pytest.raises(PolicyRefusal, match="Another job"), folder.exclusively():
        raise AssertionError("both got in")
    with folder.exclusively():
        assert folder.path.is_dir()


def test_nothing_begun(tmp_path: Path) -> None:
    with pytest.raises(PolicyRefusal, match="No image"):
        locate_begun(tmp_path / "missing", a_disk())


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_damaged_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(FormatError, match="no JSON"):
        read_json(tmp_path / "x.json")
    with pytest.raises(FormatError, match="missing"):
        read_json(tmp_path / "y.json")


def test_replaced_files_are_whole_or_untouched(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"one")
    replace_file(path, b"two", sync=False)
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    with pytest.raises(OSError, match="No such file"):
        replace_file(tmp_path / "none" / "file", b"x")
    assert tail_of(path, 2) == b"wo"
    assert tail_of(tmp_path / "none", 2) == b""
    assert read_or_none(tmp_path / "none") is None


@pytest.mark.parametrize("size", [0, 1, 511, 4096, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, (20 << 20) + 513])
async def test_hash_of_any_size(tmp_path: Path, size: int) -> None:
    content = (os.urandom(1 << 16) * (size // (1 << 16) + 1))[:size]
    (tmp_path / "f").write_bytes(content)
    ticks: list[int] = []
    assert await sha256_of(tmp_path / "f", ticks.append) == hashlib.sha256(content).hexdigest()
    assert ticks[-1] == size


async def test_hash_of_a_file_with_holes(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.truncate(30 << 20)
        file.seek(17 << 20)
        file.write(b"x")
    assert await sha256_of(tmp_path / "f", lambda _: None) == hashlib.sha256(
        bytes(17 << 20) + b"x" + bytes((13 << 20) - 1)).hexdigest()


async def test_hash_can_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(64 << 20))
    stop = threading.Event()
    stop.set()
    with pytest.raises(HashStoppedError):
        await sha256_of(tmp_path / "f", lambda _: None, stop)
    with pytest.raises(FileNotFoundError):
        await sha256_of(tmp_path / "g", lambda _: None)
    assert len(asyncio.all_tasks()) == 1


def attach(root: Path, **files: str) -> None:
    """A block device in a made-up sysfs."""
    for name, content in files.items():
        path = root / "8:0" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


def test_attachment(tmp_path: Path) -> None:
    disk = Attachment((8, 0), 9, 1 << 20)
    assert disk.what_is_wrong(tmp_path) == "The disk is no longer there."
    attach(tmp_path, size="2048", diskseq="9")
    assert disk.what_is_wrong(tmp_path) == ""
    attach(tmp_path, device__state="running")
    assert disk.what_is_wrong(tmp_path) == ""
    attach(tmp_path, device__state="offline")
    assert "given the disk up" in disk.what_is_wrong(tmp_path)
    attach(tmp_path, device__state="live", diskseq="10")
    assert "something else" in disk.what_is_wrong(tmp_path)
    attach(tmp_path, diskseq="9", size="0")
    assert "size of zero" in disk.what_is_wrong(tmp_path)
    attach(tmp_path, size="4096")
    assert "now has 2097152 bytes" in disk.what_is_wrong(tmp_path)


def test_attachment_with_several_paths_needs_one_that_lives(tmp_path: Path) -> None:
    disk = Attachment((8, 0), 9, 1 << 20)
    attach(tmp_path, size="2048", diskseq="9", device__nvme0__state="dead", device__nvme1__state="live")
    assert disk.what_is_wrong(tmp_path) == ""
    attach(tmp_path, device__nvme1__state="deleting")
    assert "dead, deleting" in disk.what_is_wrong(tmp_path)


def test_images_of_cases_and_destinations_are_found_once(tmp_path: Path) -> None:
    for name in ("stasis-case-1/a/image.raw", "stasis-case-1/b/image.partial.raw", "stasis-case-2/a/image.raw",
                 "other/a/image.raw", "stasis-case-1/a/image.map"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = images_in([tmp_path / "stasis-case-2", tmp_path / "gone"], [tmp_path, tmp_path / "unmounted"])
    assert [str(path.relative_to(tmp_path)) for path in found] == [
        "stasis-case-2/a/image.raw", "stasis-case-1/a/image.raw", "stasis-case-1/b/image.partial.raw"]
