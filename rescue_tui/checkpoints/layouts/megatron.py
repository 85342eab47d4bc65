"""Megatron-LM: ``iter_%07d/mp_rank_*`` (legacy) and ``iter_%07d`` with torch.distributed.checkpoint (dist); NeMo 2.

How many ranks there must be is read from the arguments that each legacy file keeps. The tracker
``latest_checkpointed_iteration.txt`` is written last; dist saves end with ``metadata.json``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rescue_tui.checkpoints.desk import Desk, Gathered
from rescue_tui.checkpoints.layouts import dcp
from rescue_tui.checkpoints.layouts.composite import (
    all_members,
    find_field,
    parts_of,
    pointer,
    same_step,
    step_of_values,
    whole,
)
from rescue_tui.checkpoints.model import Reading, Verdict
from rescue_tui.checkpoints.names import step_of_part
from rescue_tui.checkpoints.survey import Folder, Unit
from rescue_tui.checkpoints.tree import Tree, child
from rescue_tui.core.finding import Severity

NAME = "megatron"
TRACKER = "latest_checkpointed_iteration.txt"
DIST_MARKER = "metadata.json"
NEMO_PARTS = frozenset({"weights", "context"})
_RANK = re.compile(r"mp_rank_(?P<tensor>\d{2,})(?:_(?P<second>\d{3,}))?(?:_(?P<third>\d{3,}))?$")
_ITERATION = re.compile(r"iter_\d{7,}$")
_MAX_RANKS = 1 << 16


class Sizes(NamedTuple):
    """The degrees of model parallelism."""

    tensor: int
    pipeline: int
    expert: int


def claims(tree: Tree, folder: Folder) -> Sequence[Unit]:
    """A step's directory of either kind, or the directory of a NeMo 2 checkpoint."""
    if any(_RANK.match(name) for name in folder.directories) and "zero" not in folder.directories:
        return (Unit(NAME, folder.path, folder.path, whole=True),)
    data = dcp.METADATA in folder.files or ".distcp" in folder.text
    if data and ({DIST_MARKER, "common.pt"} & folder.files or _ITERATION.match(folder.name)):
        return (Unit(NAME, folder.path, folder.path, whole=True),)
    if set(folder.directories) >= NEMO_PARTS and any(
            entry.name == dcp.METADATA or entry.name.endswith(".distcp")
            for entry in tree.listing(folder.at("weights"))):
        return (Unit(NAME, folder.path, folder.path, whole=True),)
    return ()


def judge(desk: Desk, unit: Unit) -> Reading:
    """One step."""
    entries = desk.listing(unit.directory)
    if set(entries) >= NEMO_PARTS:
        gathered = Gathered("nemo")
        _dist(desk, child(unit.directory, "weights"), gathered)
        all_members(desk, unit.directory, gathered)
        return gathered.reading()
    gathered = Gathered("megatron")
    if any(_RANK.match(name) for name in entries):
        _legacy(desk, unit.directory, gathered)
    else:
        _dist(desk, unit.directory, gathered)
    if _ITERATION.match(unit.directory.rpartition("/")[2]):
        pointer(desk, unit.directory, TRACKER, gathered)
    return gathered.reading()


def _dist(desk: Desk, directory: str, gathered: Gathered) -> None:
    dcp.read_into(desk, directory, gathered)
    entries = desk.listing(directory)
    path = child(directory, DIST_MARKER)
    if DIST_MARKER not in entries:
        gathered.find(Severity.ERROR, "marker-missing", f"{DIST_MARKER} is missing, the file that is written last.",
                      Verdict.UNCOMMITTED, path)
    elif not isinstance(desk.json_of(path), dict):
        gathered.find(Severity.ERROR, "marker-unusable", f"{DIST_MARKER}, which is written last, is empty or cut.",
                      Verdict.UNCOMMITTED, path)


def _legacy(desk: Desk, directory: str, gathered: Gathered) -> None:
    parts = parts_of(desk, directory, {NAME, "deepspeed"})
    sizes: set[Sizes] = set()
    steps: dict[str, int | None] = {}
    files: dict[str, set[str]] = {}
    for part in parts:
        rank, _, file = part.inner.rpartition("/")
        gathered.add(part.reading, f"{rank or part.stem}.{'' if file.startswith('model') else part.stem + '.'}")
        if _RANK.match(rank):
            files.setdefault(file, set()).add(rank)
        found = _sizes(part.reading.tree)
        if found is not None:
            sizes.add(found)
        step = whole(find_field(part.reading.tree, "iteration"), 1 << 62)
        steps[part.inner] = step if step is not None else step_of_values(part.reading.values)
    own = step_of_part(directory.rpartition("/")[2]) if _ITERATION.match(directory.rpartition("/")[2]) else None
    if own is not None and any(step is not None for step in steps.values()):
        steps["the directory's name"] = own.number
    gathered.step = same_step(steps, gathered, directory)
    all_members(desk, directory, gathered)
    ranks = {name for name in desk.listing(directory) if _RANK.match(name)}
    if len(sizes) > 1:
        gathered.find(Severity.ERROR, "sizes-mixed", "The ranks disagree on how the model was split "
                      f"({', '.join(str(tuple(size)) for size in sorted(sizes))}).", Verdict.INCONSISTENT, directory)
    expected = _ranks(max(sizes), ranks) if sizes else _contiguous(ranks)
    why = (f"the arguments ask for tensor, pipeline and expert sizes {tuple(max(sizes))}" if sizes
           else "ranks with higher numbers are there")
    gathered.missing(directory, sorted(expected - ranks), why)
    for file, holders in sorted(files.items()):
        gathered.missing(directory, sorted(f"{rank}/{file}" for rank in (ranks & expected) - holders),
                         "other ranks have it")
    if not files:
        gathered.find(Severity.ERROR, "no-data", "No rank has any file.", Verdict.INCOMPLETE, directory)
    if not sizes and files:
        gathered.find(Severity.WARNING, "ranks-not-told", "No file tells how many ranks there must be: a lost last "
                      "rank can't be noticed.", None, directory)


def _sizes(tree: object) -> Sizes | None:
    args = find_field(tree, "args")
    tensor = whole(find_field(args, "tensor_model_parallel_size"))
    if tensor is None:
        tensor = whole(find_field(args, "model_parallel_size"))
    if tensor is None:
        return None
    pipeline = whole(find_field(args, "pipeline_model_parallel_size")) or 1
    expert = whole(find_field(args, "expert_model_parallel_size")) or 1
    return Sizes(tensor, pipeline, expert) if tensor * pipeline * expert <= _MAX_RANKS else None


def _ranks(sizes: Sizes, present: set[str]) -> set[str]:
    """The directories that there must be (megatron/training/checkpointing.py, get_checkpoint_name)."""
    numbered = any(match["second"] for name in present if (match := _RANK.match(name)))
    split_pipeline = sizes.pipeline > 1 or (numbered and sizes.expert == 1)
    names = set()
    for tensor in range(sizes.tensor):
        for pipeline in range(sizes.pipeline):
            for expert in range(sizes.expert):
                name = f"mp_rank_{tensor:02d}"
                if split_pipeline:
                    name += f"_{pipeline:03d}"
                if sizes.expert > 1:
                    name += f"_{expert:03d}"
                names.add(name)
    return names


def _contiguous(present: set[str]) -> set[str]:
    """Every combination of the numbers up to the highest."""
    found = [match for name in present if (match := _RANK.match(name))]
    tensor = max(int(match["tensor"]) for match in found) + 1
    second = max((int(match["second"]) + 1 for match in found if match["second"]), default=0)
    third = max((int(match["third"]) + 1 for match in found if match["third"]), default=0)
    if tensor * max(second, 1) * max(third, 1) > _MAX_RANKS:
        return set(present)
    return {"_".join([f"mp_rank_{one:02d}", *([f"{two:03d}"] if second else []), *([f"{three:03d}"] if third else [])])
            for one in range(tensor) for two in range(max(second, 1)) for three in range(max(third, 1))}
