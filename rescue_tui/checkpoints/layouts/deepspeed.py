"""DeepSpeed: model states, ZeRO partitions, pipeline layers, universal checkpoints (runtime/engine.py).

The last partition can be lost without a gap in the names, so the counts are read from inside the files:
``partition_count`` of any optimizer state, ``dp_world_size`` and ``mp_world_size`` of any model state.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from rescue_tui.checkpoints.desk import Desk, Gathered
from rescue_tui.checkpoints.layouts.composite import (
    Part,
    all_members,
    find_field,
    parts_of,
    pointer,
    same_step,
    step_of_values,
    whole,
)
from rescue_tui.checkpoints.layouts.dcp_metadata import shape_of
from rescue_tui.checkpoints.model import Reading, Verdict
from rescue_tui.checkpoints.names import step_of_part
from rescue_tui.checkpoints.survey import Folder, Unit
from rescue_tui.checkpoints.tree import Kind, Tree
from rescue_tui.core.finding import Severity

NAME = "deepspeed"
LATEST, LATEST_UNIVERSAL = "latest", "latest_universal"
_OPTIMIZER = re.compile(
    r"(?P<kind>(?:bf16_|fp16_)?zero_pp_rank_)(?P<data>\d+)_mp_rank_(?P<model>\d+)_optim_states\.pt$")
_PARTITIONED = re.compile(r"(?P<kind>zero_pp_rank_)(?P<data>\d+)_mp_rank_(?P<model>\d+)_model_states\.pt$")
_WHOLE = re.compile(r"mp_rank_(?P<model>\d+)_model_states\.pt$")
_LAYER = re.compile(r"layer_(?P<layer>\d+)-model_(?P<model>\d+)-model_states\.pt$")
_EXPERT = re.compile(r"(?:layer_(?P<layer>\d+)_)?expert_(?P<expert>\d+)_mp_rank_(?P<model>\d+)_model_states\.pt$")
_ANY = re.compile(r".*(?:_model_states|_optim_states)\.pt$")
_MAX_RANKS = 1 << 16
_MAX_TOLD = 16
_FLAT = re.compile(r"(?:single_partition_of_fp32_groups|fp32_flat_groups)\.(\d+)$")


@dataclass(slots=True)
class _Counts:
    """What the files say of each other: numbers of partitions, of data and of model parallel ranks."""

    partitions: set[int] = field(default_factory=set)
    data: set[int] = field(default_factory=set)
    model: set[int] = field(default_factory=set)
    shapes: list[Mapping[object, object]] = field(default_factory=list)
    partition: dict[int, int] = field(default_factory=dict)  # group: elements of each rank's part


def claims(tree: Tree, folder: Folder) -> Sequence[Unit]:
    """A tag's directory."""
    if "_states.pt" in folder.text and any(_ANY.match(name) for name in folder.candidates):
        return (Unit(NAME, folder.path, folder.path, whole=True),)
    if "zero" in folder.directories and _parameters_below(tree, folder):
        return (Unit(NAME, folder.path, folder.path, whole=True),)
    return ()


def _parameters_below(tree: Tree, folder: Folder) -> bool:
    for entry in tree.listing(folder.at("zero"))[:4]:
        if entry.kind is Kind.DIRECTORY and any(inner.name == "fp32.pt" for inner in tree.listing(entry.path)):
            return True
    return False


def judge(desk: Desk, unit: Unit) -> Reading:
    """One tag."""
    directory = unit.directory
    gathered = Gathered("deepspeed")
    parts = parts_of(desk, directory, {NAME, "megatron", "hf-trainer", "sharded"})
    counts = _Counts()
    steps: dict[str, int | None] = {}
    for part in parts:
        gathered.add(part.reading, _prefix(part))
        _count(part, counts)
        if _ANY.match(part.inner):
            step = whole(find_field(part.reading.tree, "global_steps"), 1 << 62)
            steps[part.inner] = step if step is not None else step_of_values(part.reading.values)
    all_members(desk, directory, gathered)
    gathered.step = same_step(steps, gathered, directory)
    own = step_of_part(directory.rpartition("/")[2])
    if own is not None and gathered.step is None and not own.is_epoch:
        gathered.step = own.number
    names = {part.inner for part in parts} | {
        entry.path[len(directory) + 1 if directory else 0 :] for entry in desk.files_below(directory)}
    _ranks(directory, names, counts, gathered)
    _layers(directory, names, gathered)
    universal = any(name.startswith("zero/") for name in names)
    if universal:
        _universal(directory, names, counts, gathered)
    pointer(desk, directory, LATEST_UNIVERSAL if universal else LATEST, gathered)
    return gathered.reading()


def _prefix(part: Part) -> str:
    if part.inner.startswith("zero/"):
        return part.inner[len("zero/") : -len(".pt")] + "."
    return f"{part.stem}."


def _count(part: Part, counts: _Counts) -> None:
    tree = part.reading.tree
    data = whole(find_field(tree, "optimizer_state_dict", "partition_count"), _MAX_RANKS)
    if data is not None:
        counts.partitions.add(data)
    if not part.inner.endswith("_model_states.pt"):
        if _OPTIMIZER.match(part.inner):
            for tensor in part.reading.tensors:
                match = _FLAT.search(tensor.name)
                if match:
                    counts.partition.setdefault(int(match[1]), prod(tensor.shape))
        return
    data = whole(find_field(tree, "dp_world_size"), _MAX_RANKS)
    if data is not None:
        counts.data.add(data)
    model = whole(find_field(tree, "mp_world_size"), _MAX_RANKS)
    if model is not None:
        counts.model.add(model)
    shapes = find_field(tree, "param_shapes")
    if isinstance(shapes, list) and not counts.shapes:
        counts.shapes = [group for group in shapes if isinstance(group, dict)]


def _ranks(directory: str, names: Iterable[str], counts: _Counts, gathered: Gathered) -> None:
    optimizer: dict[str, set[tuple[int, int]]] = defaultdict(set)
    partitioned: set[tuple[int, int]] = set()
    models: set[int] = set()
    for name in names:
        if match := _OPTIMIZER.match(name):
            optimizer[match["kind"]].add((int(match["data"]), int(match["model"])))
        elif match := _PARTITIONED.match(name):
            partitioned.add((int(match["data"]), int(match["model"])))
        elif match := _WHOLE.match(name):
            models.add(int(match["model"]))
    for asked_by in (counts.partitions, counts.data):
        if len(asked_by) > 1:
            gathered.find(Severity.ERROR, "sizes-mixed", "The files disagree on how many data parallel ranks there "
                          f"were ({', '.join(map(str, sorted(asked_by)))}).", Verdict.INCONSISTENT, directory)
    seen = {rank for ranks in optimizer.values() for _, rank in ranks} | {rank for _, rank in partitioned} | models
    model_count = max([*counts.model, *(rank + 1 for rank in seen)], default=0)
    if model_count > _MAX_RANKS:
        return
    asked = max(counts.partitions or counts.data, default=0)
    for kind, ranks in sorted(optimizer.items()):
        data_count = max(asked, max(rank for rank, _ in ranks) + 1)
        if data_count * model_count > _MAX_RANKS:
            continue
        lost = [(data, model) for model in range(model_count) for data in range(data_count)
                if (data, model) not in ranks]
        gathered.missing(directory, [f"{kind}{data}_mp_rank_{model:02d}_optim_states.pt" for data, model in lost],
                         f"the state was split over {data_count} ranks")
        for data, _ in lost[:_MAX_TOLD]:
            _lost_parameters(directory, data, counts, bool(partitioned), gathered)
    if partitioned:
        data_count = max(asked, max(rank for rank, _ in partitioned) + 1)
        if data_count * model_count <= _MAX_RANKS:
            gathered.missing(directory, [
                f"zero_pp_rank_{data}_mp_rank_{model:02d}_model_states.pt" for model in range(model_count)
                for data in range(data_count) if (data, model) not in partitioned],
                f"the parameters were split over {data_count} ranks")
    elif models or optimizer:
        gathered.missing(directory, [f"mp_rank_{model:02d}_model_states.pt" for model in range(model_count)
                                     if model not in models], f"there were {model_count} model parallel ranks")
    if not asked and optimizer:
        gathered.find(Severity.WARNING, "ranks-not-told", "No file tells how many ranks there must be: a lost last "
                      "rank can't be noticed.", None, directory)


def _lost_parameters(directory: str, rank: int, counts: _Counts, stage3: bool, gathered: Gathered) -> None:
    """ZeRO 1 and 2: a rank holds one run of the flat vector, whose parameters can be named. ZeRO 3: a part of each."""
    for index, group in enumerate(counts.shapes):
        sizes = [(str(name), prod(sizes_of)) for name, shape in group.items()
                 if (sizes_of := shape_of(shape)) is not None]
        if stage3:
            hit = [name for name, _ in sizes]
        else:
            part = counts.partition.get(index)
            if not part:
                continue
            first, last = rank * part, (rank + 1) * part
            at, hit = 0, []
            for name, size in sizes:
                if at < last and at + size > first:
                    hit.append(name)
                at += size
        if hit:
            gathered.find(Severity.ERROR, "partition-lost", f"With rank {rank} the optimizer state and the 32 bit copy "
                          f"of {len(hit)} parameters {'lose a part' if stage3 else 'are lost in whole or in part'}.",
                          None, directory, hit)


def _layers(directory: str, names: Iterable[str], gathered: Gathered) -> None:
    """Pipeline layers and experts: each must be there for every model parallel rank that any has."""
    for pattern, form in ((_LAYER, "layer_{:02d}-model_{:02d}-model_states.pt"),):
        found: dict[int, set[int]] = defaultdict(set)
        for name in names:
            if match := pattern.match(name):
                found[int(match["layer"])].add(int(match["model"]))
        ranks = set().union(*found.values()) if found else set()
        gathered.missing(directory, [form.format(layer, rank) for layer, present in sorted(found.items())
                                     for rank in sorted(ranks - present)], "other layers have this rank")
    experts: dict[tuple[int, int], set[int]] = defaultdict(set)
    for name in names:
        if match := _EXPERT.match(name):
            experts[int(match["layer"] or -1), int(match["model"])].add(int(match["expert"]))
    count = max((max(numbers) for numbers in experts.values()), default=-1) + 1
    for (layer, model), numbers in sorted(experts.items()):
        prefix = f"layer_{layer}_" if layer >= 0 else ""
        gathered.missing(directory, [f"{prefix}expert_{number}_mp_rank_{model:02d}_model_states.pt"
                                     for number in range(min(count, _MAX_RANKS)) if number not in numbers],
                         "other layers have this expert")


def _universal(directory: str, names: Iterable[str], counts: _Counts, gathered: Gathered) -> None:
    """Every parameter has the same files, and each parameter that the model states name has a directory."""
    have: dict[str, set[str]] = defaultdict(set)
    for name in names:
        parts = name.split("/")
        if len(parts) == 3 and parts[0] == "zero" and parts[2].endswith(".pt"):
            have[parts[1]].add(parts[2])
    every = set().union(*have.values()) if have else set()
    every.discard("step.pt")
    gathered.missing(directory, [f"zero/{name}/{file}" for name, files in sorted(have.items())
                                 for file in sorted(every - files)], "other parameters have it")
    told = {str(name) for group in counts.shapes for name in group}
    gathered.missing(directory, [f"zero/{name}" for name in sorted(told - set(have))], "the model has this parameter")
