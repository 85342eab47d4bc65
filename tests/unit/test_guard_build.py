"""The write guard's part of the image build, and the initrds that its boot tests change."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import guard
from builder.host import TOP

from tests.support.vm.initrd import member, overlaid


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name, text in (("b.c", "int b;"), ("a.h", "int a;"), ("Kbuild", "obj-m := x.o"), ("b.o", "no source")):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_only_sources_are_compiled_in_a_fixed_order(sources: Path) -> None:
    assert [path.name for path in guard.source_files(sources)] == ["Kbuild", "a.h", "b.c"]


@pytest.mark.parametrize("name", ["b.c", "a.h", "Kbuild"])
def test_a_change_of_any_source_is_another_module(sources: Path, name: str) -> None:
    before = guard.source_digest(guard.source_files(sources), "6.12")
    (sources / name).write_text("other")
    assert guard.source_digest(guard.source_files(sources), "6.12") != before


def test_another_kernel_is_another_module(sources: Path) -> None:
    files = guard.source_files(sources)
    assert guard.source_digest(files, "6.12", "1") == guard.source_digest(files, "6.12", "1")
    assert guard.source_digest(files, "6.12", "1") != guard.source_digest(files, "6.12", "2")
    assert guard.source_digest(files, "6.12", "1") != guard.source_digest(files, "6.121")


def test_every_source_is_in_the_makefile_and_gpl() -> None:
    files = guard.source_files()
    kbuild = (guard.SOURCES / "Kbuild").read_text()
    parts = {path.stem for path in files if path.suffix == ".c"}
    assert parts == {word.removesuffix(".o") for word in kbuild.split("stasis_guard-y := ")[1].split("\n")[0].split()}
    for path in files:
        assert "SPDX-License-Identifier: GPL-2.0" in path.read_text().split("\n")[0], path.name
        assert len(path.read_text().splitlines()) <= 450, path.name


def test_the_module_can_not_be_unloaded_and_its_hooks_are_permanent() -> None:
    text = "".join(path.read_text() for path in guard.source_files())
    assert "module_exit" not in text
    assert "FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT" in text


def test_the_first_stage_arms_the_guard_before_anything_else_is_loaded() -> None:
    script = (TOP / "image/stage1-init").read_text()
    steps = ["guard-order", "'guard version=1 armed=1 '*", "< /modules/order", "seal /sysroot", "switch_root"]
    places = [script.index(step) for step in steps]
    assert places == sorted(places)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    empty = tmp_path / "empty"
    empty.touch()
    return overlaid(empty, tmp_path / "initrd", {"modules/order": b"loop.ko\n", "init": b"#!/bin/sh\n" * 7})


def test_members_of_an_initrd_are_read_back(archive: Path) -> None:
    assert member(archive, "modules/order") == b"loop.ko\n"
    assert member(archive, "init") == b"#!/bin/sh\n" * 7
    with pytest.raises(KeyError, match="nothing"):
        member(archive, "nothing")


def test_a_file_is_laid_over_by_a_second_archive(archive: Path, tmp_path: Path) -> None:
    changed = overlaid(archive, tmp_path / "changed", {"modules/order": b"other.ko\nx"})
    assert changed.read_bytes().startswith(archive.read_bytes())
    assert member(changed, "modules/order") == b"other.ko\nx"
    assert member(changed, "init") == member(archive, "init")


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 200)
    with pytest.raises(ValueError, match="cpio"):
        member(tmp_path / "file", "init")
