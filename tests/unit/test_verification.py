"""Verification and report of a case folder, with hostile content too."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rescue_tui.core.errors import ExitStatus, UsageError
from rescue_tui.core.finding import Severity
from rescue_tui.core.guardrecord import END, START, GuardRecord
from rescue_tui.core.guardstate import RefusedAttempt
from rescue_tui.jobs.casefolder import MANIFEST, format_manifest, small_hash
from rescue_tui.jobs.evidence import GUARD_FILE
from rescue_tui.jobs.reporting import rebuild_report
from rescue_tui.jobs.verification import verify_case
from rescue_tui.system.runner import Runner
from tests.support.cases import IMAGE, finished_case
from tests.support.guard_looks import look
from tests.support.imaging import a_disk

HOSTILE = "<script>alert(1)</script>\x1b[2J[/foo]\u202e\udcff" + "x" * 5000
VOID = frozenset({"meta", "br", "rect", "link"})


class Strict(HTMLParser):
    """Fails on a tag that isn't closed in order; keeps tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open."""
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close."""
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text."""
        self.words.append(data)


def read_page(path: Path) -> Strict:
    """The report as a browser would take it."""
    page = Strict()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    return page


async def test_a_good_case(tmp_path: Path) -> None:
    folder = await finished_case(tmp_path)
    seen: list[tuple[str, int, int]] = []
    verdict = await verify_case(Runner(), folder.path.parent, lambda *step: seen.append(step))
    assert (verdict.good, verdict.findings, verdict.exit_status) == (True, (), ExitStatus.GOOD)
    assert verdict.checked_files == 9
    assert seen[-1][1] == seen[-1][2] == verdict.checked_bytes > len(IMAGE)


async def test_the_report_tells_of_the_guard(tmp_path: Path) -> None:
    attempt = RefusedAttempt("2026-12-02T09:00:00.000Z", "/dev/nvme0n1", "bio", 1, 123, HOSTILE)
    record = GuardRecord((look(START), replace(look(END), last_refused=(attempt,))))
    folder = await finished_case(tmp_path, guard=record)
    assert (await verify_case(Runner(), folder.path.parent)).findings == ()
    report = json.loads((folder.path.parent / "report.json").read_bytes())["sources"][0]["guard"]
    assert (report["armed"], report["written"], report["looks"]) == (True, False, 2)
    assert report["end"]["refused_on_source"] == {"bio": 3, "open": 0}
    assert report["start"]["counters"][0]["counters"]["write_ios"] == 0
    page = read_page(folder.path.parent / "report.html")
    words = " ".join(page.words)
    for part in ("armed at the start and at the end", "0 writes, 0 discards and 0 flushes", "bio 0x01", "(bio 3): 3"):
        assert part in words
    assert "script" not in page.tags


async def test_a_case_without_a_look_at_the_guard_says_so(tmp_path: Path) -> None:
    folder = await finished_case(tmp_path)
    assert "The write guard was not noted." in read_page(folder.path.parent / "report.html").words


async def test_writes_to_the_source_and_a_damaged_record_are_told(tmp_path: Path) -> None:
    folder = await finished_case(tmp_path, guard=GuardRecord((look(START), look(END, writes=1))))
    verdict = await verify_case(Runner(), folder.path.parent)
    assert [(each.code, each.severity, each.evidence) for each in verdict.findings] == [
        ("source-written", Severity.WARNING, "nvme0n1: 1 writes, 0 discards")]
    assert verdict.good
    folder.file(GUARD_FILE).write_text('{"looks": 1}')
    codes = {each.code for each in (await verify_case(Runner(), folder.path.parent)).findings}
    assert codes == {"mismatch", "guard-record-damaged"}


async def test_bad_areas_are_told_and_are_no_mismatch(tmp_path: Path) -> None:
    folder = await finished_case(tmp_path, bad_bytes=512)
    verdict = await verify_case(Runner(), folder.path.parent)
    assert verdict.good
    assert [(finding.code, finding.severity) for finding in verdict.findings] == [("bad-areas", Severity.INFO)]
    report = json.loads((folder.path.parent / "report.json").read_bytes())
    assert report["schema"] == "stasis.report/1"
    assert report["sources"][0]["map"]["bad_areas"] == [{"start_bytes": len(IMAGE) - 512, "size_bytes": 512}]
    page = read_page(folder.path.parent / "report.html")
    assert "512 B in 1 area could not be read" in " ".join(page.words)


@pytest.mark.parametrize(("name", "change", "code"), [
    ("{}/image.raw", b"other", "mismatch"),
    ("{}/image.map", b"0x0 + 1\n0x0 0x10 +\n", "mismatch"),
    ("{}/result.json", None, "missing"),
    ("case.json", b"{}", "mismatch"),
    ("MANIFEST.sha256", None, "manifest-missing"),
    ("MANIFEST.sha256", b"x\n", "manifest-damaged"),
    ("journal.jsonl", None, "journal-missing"),
    ("journal.jsonl", b"", "journal-cut"),
    ("report.json", b"{}", "report-damaged"),
    ("{}/planted", b"x", "extra-file"),
])
async def test_each_change_is_found(tmp_path: Path, name: str, change: bytes | None, code: str) -> None:
    folder = await finished_case(tmp_path)
    path = folder.path.parent / name.format(folder.path.name)
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change)
    verdict = await verify_case(Runner(), folder.path.parent)
    assert code in [finding.code for finding in verdict.findings]
    assert (verdict.good, verdict.exit_status) == (False, ExitStatus.DAMAGE)


async def test_a_link_in_the_place_of_a_file_is_missing(tmp_path: Path) -> None:
    folder = await finished_case(tmp_path)
    folder.image.rename(tmp_path / "elsewhere")
    folder.image.symlink_to(tmp_path / "elsewhere")
    verdict = await verify_case(Runner(), folder.path.parent)
    assert [finding.code for finding in verdict.findings] == ["missing"]


async def test_what_is_no_case(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no case folder"):
        await verify_case(Runner(), tmp_path)
    with pytest.raises(UsageError, match="no case folder"):
        await rebuild_report(Runner(), tmp_path)


async def test_report_escapes_what_disks_say(tmp_path: Path) -> None:
    disk = a_disk()
    part = replace(disk.partitions[0], name=HOSTILE)
    folder = await finished_case(tmp_path, replace(disk, model=HOSTILE, serial=HOSTILE, partitions=(part,)))
    page = read_page(folder.path.parent / "report.html")
    text = (folder.path.parent / "report.html").read_text(encoding="utf-8")
    assert "script" not in page.tags
    assert not {"\x1b", "\u202e", "\udcff"} & set(text)
    assert "<script>alert(1)</script>" in " ".join(page.words)
    assert 'src=' not in text
    assert "http://" not in text
    assert "https://" not in text


async def test_report_of_a_case_with_little_left(tmp_path: Path) -> None:
    folder = await finished_case(tmp_path)
    for name in ("identity.json", "job.json", "result.json", "image.map", "health-before.json"):
        folder.file(name).unlink()
    (folder.path.parent / "journal.jsonl").unlink()
    page = read_page(await rebuild_report(Runner(), folder.path.parent))
    words = " ".join(page.words)
    assert "The image was not finished." in words
    assert "There is no journal" in words


@pytest.mark.parametrize("content", [b"[]", b'{"verdict": "damaged", "bad_bytes": "many", "tools": 7}', b"{", b"null"])
async def test_report_of_a_damaged_result(tmp_path: Path, content: bytes) -> None:
    folder = await finished_case(tmp_path)
    folder.file("result.json").write_bytes(content)
    assert read_page(await rebuild_report(Runner(), folder.path.parent)).words


async def test_what_was_collected_into_a_case_is_verified_too(tmp_path: Path) -> None:
    folder = await finished_case(tmp_path)
    case = folder.path.parent
    (case / "stasis-collected-1" / "disks").mkdir(parents=True)
    path = case / "stasis-collected-1" / "disks" / "x.json"
    path.write_bytes(b"{}")
    (case / "stasis-collected-1" / MANIFEST).write_bytes(format_manifest({"disks/x.json": small_hash(path)}))
    assert (await verify_case(Runner(), case)).findings == ()
    path.write_bytes(b"[]")
    (case / "stasis-collected-1" / "planted").write_bytes(b"x")
    assert [finding.code for finding in (await verify_case(Runner(), case)).findings] == ["mismatch", "extra-file"]
