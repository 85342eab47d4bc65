"""Names: steps, runs, temporary names, and which files are opened at all."""

from __future__ import annotations

import random

import pytest

from rescue_tui.checkpoints.names import (
    Promise,
    is_auxiliary,
    is_temporary,
    promise,
    promises,
    run_of_path,
    step_of_path,
    without_temporary,
)
from rescue_tui.checkpoints.survey import FILE, PROBES, Tally, survey
from rescue_tui.checkpoints.tree import MemoryTree
from tests.support.ckpt.saves import safetensors_file


@pytest.mark.parametrize(("path", "step"), [
    ("step_100", 100), ("iter_0000100", 100), ("run/checkpoint-500", 500), ("epoch=1-step=7.ckpt", 7),
    ("tiny--step=100.ckpt", 100), ("global_step50", 50), ("train/ckpt-1", 1), ("model_000123.pt", 123), ("run/10", 10),
    ("run/20.orbax-checkpoint-tmp", 20), ("step_900/model.safetensors", 900), ("7000steps.pt", 7000),
    ("epoch418/model.pt", 418), ("step_5/epoch_2.pt", 5), ("model-00001-of-00003.safetensors", None),
    ("unet-v1-5.ckpt", None), ("last.pt", None), ("mp_rank_00/model.pt", None), ("v2.1.pt", None), ("", None),
])
def test_steps(path: str, step: int | None) -> None:
    assert step_of_path(path) == step


@pytest.mark.parametrize(("path", "run"), [
    ("step_900/model.safetensors", "."), ("run/checkpoint-500", "run"), ("a/ckpt/step_1000.pt", "a/ckpt"),
    ("model.pt", "."), ("a/b/model.pt", "a/b")])
def test_runs(path: str, run: str) -> None:
    assert run_of_path(path) == run


@pytest.mark.parametrize(("name", "base"), [
    ("model.pt.tmp", "model.pt"), ("model.pt.tmp.1234", "model.pt"), (".model.pt.Ab12Cd", "model.pt"),
    ("x.safetensors.incomplete", "x.safetensors"), ("5.orbax-checkpoint-tmp-17", "5"), ("tmp-checkpoint-7",
                                                                                       "checkpoint-7"),
    ("m.pt.part", "m.pt"), ("m.pt~", "m.pt")])
def test_temporary_names(name: str, base: str) -> None:
    assert is_temporary(name)
    assert without_temporary(name) == base


@pytest.mark.parametrize("name", ["model.pt", "template.pt", "attempt_5.pt", "tmpl.bin", "partial.safetensors", "a.b"])
def test_names_that_are_not_temporary(name: str) -> None:
    assert not is_temporary(name)


@pytest.mark.parametrize(("name", "what"), [
    ("a.pt", Promise.STRONG), ("A.PT", Promise.STRONG), ("a.safetensors.tmp", Promise.STRONG),
    ("a.pt.gz", Promise.STRONG), ("a.tar.gz", Promise.NOTHING), ("a.py", Promise.NOTHING), ("a.bin", Promise.WEAK),
    ("ckpt-1.data-00000-of-00001", Promise.WEAK), ("model.safetensors.index.json", Promise.NOTHING),
    ("a", Promise.UNKNOWN), (".tmpAb12Cd", Promise.UNKNOWN), ("x-unfinished", Promise.NOTHING)])
def test_promises(name: str, what: Promise) -> None:
    assert promise(name) is what
    assert dict(promises([name])).get(name, Promise.NOTHING) is what
    assert dict(promises([name, "odd.tmp"])).get(name, Promise.NOTHING) is what


def test_auxiliary_names() -> None:
    assert all(map(is_auxiliary, ("a/optimizer.pt", "rng_state_3.pth", "scheduler.bin", "training_args.bin",
                                  "x_optim_states.pt", "random_states_0.pkl")))
    assert not any(map(is_auxiliary, ("model.pt", "a/optimizer/model.pt", "options.pt", "adapter.bin")))


def test_names_that_say_little_are_opened_until_too_many_were_in_vain() -> None:
    opened: list[str] = []

    class Watched(MemoryTree):
        def open(self, path: str):  # type: ignore[no-untyped-def]
            opened.append(path)
            return super().open(path)

    names = {f"d/{number:05d}.xyz": b"no" for number in range(PROBES + 50)}
    tally = Tally()
    assert list(survey(Watched(names), "", (), tally)) == []
    assert len(opened) == PROBES
    assert tally.unopened == 50
    large = {"d/99999.xyz": safetensors_file({"w": 1 << 18})}
    units = list(survey(Watched(names | large), "", (), Tally()))
    assert [unit.path for unit in units] == ["d/99999.xyz"]


def test_files_of_other_programs_are_not_opened() -> None:
    class Closed(MemoryTree):
        def open(self, path: str):  # type: ignore[no-untyped-def]
            raise AssertionError(path)

    tree = Closed({"a.py": b"", "b.json": b"", "c/d.jpg": b"", ".git/objects/model.pt": b"", "e.log": b""})
    tally = Tally()
    assert list(survey(tree, "", (), tally)) == []
    assert tally.files == 4


def test_strong_names_become_units_unopened() -> None:
    units = list(survey(MemoryTree({"b/x.pt": b"", "a.ckpt": b""}), "", (), Tally()))
    assert [(unit.layout, unit.path) for unit in units] == [(FILE, "a.ckpt"), (FILE, "b/x.pt")]


_BITS = ("x", "model", "a.b", "tmp", "~", ".", "step-1", ".pt", ".txt", ".gz", ".TXT", ".safetensors", "-of-00002",
         ".tmp", ".part", "-unfinished", ".index.json", ".metadata", ".lock", ".data-00000-of-00001", "PT", "é", ".zst",
         ".json", "7", "_tmp", ".aria2", ".9")


@pytest.mark.parametrize("seed", range(10))
def test_many_names_promise_what_each_does(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(500):
        names = ["".join(chance.choices(_BITS, k=chance.randrange(1, 5))) for _ in range(chance.randrange(1, 6))]
        assert promises(names) == [(name, what) for name in names if (what := promise(name)) is not Promise.NOTHING]
