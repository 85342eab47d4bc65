"""The pure parts of the attack matrix: data, marks, verdicts, the table, the fuzzer's commands, an overlaid initrd."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.attack import fuzzing, initrd
from tests.support.attack.layouts import LAYOUTS, attach, disk_names, identity
from tests.support.attack.ledger import FIRST_MARK, Cell, Reached, Tried, by_mark, errors_in, parse_results, table
from tests.support.attack.racing import with_race
from tests.support.attack.stage import ACTS, all_cells, control_cells, plan
from tests.support.source_rules import ROOT
from tests.support.vm.oracle import Class, Traced, parse_trace

WRITE = Traced("nvme", "io WRITE", Class.WRITE)
READ = Traced("nvme", "io READ", Class.READ)
FLUSH = Traced("nvme", "io FLUSH", Class.CONTROL)


def mark(number: int) -> Traced:
    return Traced("marker", str(FIRST_MARK + number), Class.READ)


def cell(act: str, layout: str, said: str = "", status: int = 1, *reached: Traced) -> Cell:
    return Cell(Tried(act, layout, status, said, (), 0.1, {"open": 1}), Reached(reached))


def test_every_act_has_a_name_of_its_own_a_layout_and_a_control_or_a_reason() -> None:
    assert len({act.name for act in ACTS}) == len(ACTS)
    tags = {tag for layout in LAYOUTS for tag in layout.tags}
    layouts = {layout.name: layout for layout in LAYOUTS}
    assert {act.on for act in ACTS} <= tags
    for act in ACTS:
        assert bool(act.control) != bool(act.why), act.name
        assert not act.control or act.on in layouts[act.control].tags, act.name


def test_the_cells_are_every_act_on_every_layout_and_what_spoils_comes_last() -> None:
    cells = all_cells()
    assert len(cells) == sum(act.on in layout.tags for act in ACTS for layout in LAYOUTS)
    spoils = [act.spoils for act, _ in cells]
    assert spoils == sorted(spoils)
    assert {act.name for act, _ in control_cells()} == {act.name for act in ACTS if act.control}


def test_disks_have_different_identities_and_the_plan_names_them() -> None:
    assert len({identity(disk) for disk in disk_names()}) == len(disk_names())
    drives, subsystems = attach(Path("/disks"), protected=True)
    attached = {drive.name for drive in drives} | {space.name for each in subsystems for space in each.namespaces}
    assert attached == {*disk_names(), "marker"}
    decoded = json.loads(plan(LAYOUTS, control_cells(), restore=True))
    assert [layout["name"] for layout in decoded["layouts"]] == [layout.name for layout in LAYOUTS]


def test_a_mark_is_a_read_of_one_block_of_the_marker() -> None:
    lines = [
        f"pci_nvme_read cid 1 nsid 200 nlb 1 count 512 lba {FIRST_MARK + 1:#x}",
        f"pci_nvme_read cid 1 nsid 200 nlb 8 count 4096 lba {FIRST_MARK + 2:#x}",
        f"pci_nvme_read cid 1 nsid 1 nlb 1 count 512 lba {FIRST_MARK + 2:#x}",
    ]
    assert list(parse_trace(lines, marker_nsid=200)) == [mark(1)]
    assert list(parse_trace(lines)) == []


def test_commands_belong_to_the_act_between_whose_marks_they_lie() -> None:
    trace = [Traced("marker", "1", Class.READ), WRITE, mark(1), READ, WRITE, mark(2), FLUSH, mark(3), FLUSH, mark(4)]
    acts, outside = by_mark(trace, 2)
    assert acts == (Reached((WRITE,)), Reached((FLUSH,)))
    assert outside == Reached((WRITE, FLUSH))
    assert (acts[0].changes, acts[1].changes) == (("nvme io WRITE",), ())


@pytest.mark.parametrize("numbers", [(1, 3), (2,), (1, 2, 3), (1, 2, 3, 4, 5), ()])
def test_marks_that_are_missing_or_out_of_order_are_no_verdict(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="mark"):
        by_mark([mark(number) for number in numbers], 2)


@pytest.mark.parametrize(("said", "errors"), [
    ("dd: failed to open '/dev/nvme0n1': Operation not permitted", ("EPERM",)),
    ("open read-write: EPERM (Operation not permitted)\nwrite: EIO (Input/output error)", ("EPERM", "EIO")),
    ("Unable to open device for writing! Errno is 30! Aborting write!", ("EROFS",)),
    ("mount: cannot mount /dev/sda read-only.", ()),
    ("3 opcodes: EACCES (Permission denied)", ("EACCES",)),
])
def test_the_errno_is_found_in_a_tools_words(said: str, errors: tuple[str, ...]) -> None:
    assert errors_in(said) == errors


def test_the_table_tells_how_each_act_was_refused_and_shouts_when_one_was_not() -> None:
    cells = [
        cell("dd", "one", "Operation not permitted"), cell("dd", "two", "", 0, WRITE), cell("hang", "one", "", 124),
    ]
    text = table(cells, ("dd", "hang"), (("one", "One"), ("two", "Two")))
    assert text.splitlines() == [
        "| act | One | Two |", "|---|---|---|",
        "| dd | EPERM (open) | **WRITES** nvme io WRITE |", "| hang | hung (open) | - |",
    ]


def test_results_of_a_machine_that_stopped_in_the_middle_are_read_up_to_there() -> None:
    line = json.dumps(
        {"act": "a", "layout": "l", "status": 1, "said": "", "left": ["md9"], "seconds": 1, "refused": {}})
    assert parse_results(f"{line}\n{line[:20]}") == (Tried("a", "l", 1, "", ("md9",), 1, {}),)


def test_the_fuzzer_makes_the_same_commands_of_the_same_seed_and_uses_every_door() -> None:
    assert fuzzing.packed(7, 50) == fuzzing.packed(7, 50) != fuzzing.packed(8, 50)
    assert len(fuzzing.packed(7, 50)) == 50 * 64
    made = list(fuzzing.commands(1, 2000))
    assert {command.door for command in made} == set(fuzzing.DOORS)
    assert set(fuzzing.IO_CHANGES) <= {command.opcode for command in made if command.door not in fuzzing.ADMIN_DOORS}
    assert len({command.opcode for command in made}) > 200


def test_a_second_archive_behind_an_initrd_is_one_that_cpio_reads(tmp_path: Path) -> None:
    plain = tmp_path / "initrd"
    plain.write_bytes(b"front")
    both = initrd.with_files(plain, {"init": b"#!/bin/sh\n", "dir/odd": b"abc"}, tmp_path / "both")
    data = both.read_bytes()
    assert data.startswith(b"front" + bytes(3) + b"070701")
    assert data[8:] == initrd.archive({"init": b"#!/bin/sh\n", "dir/odd": b"abc"})
    assert len(initrd.archive({"a": b"1"})) % initrd.ALIGN == 0
    alone = tmp_path / "alone"
    alone.write_bytes(initrd.archive({"init": b"#!/bin/sh\n", "dir/odd": b"abc"}))
    assert initrd.extract(alone, "dir/odd") == b"abc"
    with pytest.raises(KeyError):
        initrd.extract(alone, "odd")


def test_a_first_stage_starts_the_race_before_it_mounts_the_system() -> None:
    lines = with_race((ROOT / "image/stage1-init").read_text()).splitlines()
    (place,) = (number for number, line in enumerate(lines) if "/race" in line)
    assert "losetup -f" in lines[place + 1]
    with pytest.raises(ValueError, match="unpack"):
        with_race("#!/bin/sh\n")
