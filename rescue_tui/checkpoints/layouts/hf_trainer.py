"""Directories of the Hugging Face Trainer (``checkpoint-N``) and of Accelerate (``save_state``).

transformers Trainer._save_checkpoint writes model, optimizer and scheduler, scaler, random states, and
``trainer_state.json`` last; 4.36 to 4.38 wrote into ``tmp-checkpoint-N`` and renamed. Accelerate has no marker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rescue_tui.checkpoints.desk import Desk, Gathered
from rescue_tui.checkpoints.layouts.composite import Part, all_members, parts_of, same_step
from rescue_tui.checkpoints.model import Reading, Verdict
from rescue_tui.checkpoints.names import is_auxiliary, step_of_part
from rescue_tui.checkpoints.survey import Folder, Unit
from rescue_tui.checkpoints.tree import Tree, child
from rescue_tui.core.finding import Severity

NAME = "hf-trainer"
STATE = "trainer_state.json"
UNFINISHED = "checkpoint-is-incomplete.txt"
_DIRECTORY = re.compile(r"(?:tmp-)?checkpoint-\d+$")
_RNG = re.compile(r"rng_state_(\d+)\.pth$")
_RANDOM = re.compile(r"random_states_(\d+)\.pkl$")
_OWN = frozenset({"optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "training_args.bin", "rng_state.pth",
                  "optimizer.safetensors"})
_MODEL = re.compile(r"^(?:model|pytorch_model|adapter_model|consolidated|tf_model|flax_model)\b")


def claims(tree: Tree, folder: Folder) -> Sequence[Unit]:
    """A directory that holds what a trainer writes beside the model."""
    del tree
    own = folder.files & _OWN or ("rng_state_" in folder.text and any(_RNG.match(name) for name in folder.candidates))
    named = bool(_DIRECTORY.match(folder.name))
    trainer = (STATE in folder.files and (own or named)) or (named and (own or UNFINISHED in folder.files))
    accelerate = "random_states_" in folder.text and any(_RANDOM.match(name) for name in folder.candidates)
    if trainer or accelerate:
        return (Unit(NAME, folder.path, folder.path, whole=True),)
    return ()


def judge(desk: Desk, unit: Unit) -> Reading:
    """Model, optimizer, scheduler and random states as one save."""
    directory = unit.directory
    names = set(desk.listing(directory))
    parts = parts_of(desk, directory, {NAME})
    accelerate = any(_RANDOM.match(name) for name in names) and STATE not in names
    fsdp = accelerate and any(part.unit.layout == "dcp" for part in parts)
    gathered = Gathered("torch-dcp" if fsdp else "hf-trainer")
    for part in parts:
        gathered.add(part.reading, "" if _is_model(part) else f"{part.stem}.",
                     values=not _is_model(part))
    all_members(desk, directory, gathered)
    ranks = {int(match[1]) for name in names if (match := _RNG.match(name) or _RANDOM.match(name))}
    if ranks:
        form = "random_states_{}.pkl" if accelerate else "rng_state_{}.pth"
        gathered.missing(directory, [form.format(rank) for rank in range(max(ranks)) if rank not in ranks],
                         "random states of later ranks are there")
    if not any(_is_model(part) for part in parts):
        gathered.find(Severity.ERROR, "model-missing", "There is no model: neither model.safetensors nor "
                      "pytorch_model.bin, in one piece or in shards.", Verdict.INCOMPLETE, directory)
    if not accelerate:
        _marker(desk, directory, names, gathered)
    return gathered.reading()


def _is_model(part: Part) -> bool:
    """True for the weights: a file or shards of that name, or a directory of FSDP or DeepSpeed."""
    if part.unit.layout in {"dcp", "deepspeed", "megatron", "sharded"}:
        return "optimizer" not in part.inner
    return bool(_MODEL.match(part.inner.rpartition("/")[2])) and not is_auxiliary(part.inner)


def _marker(desk: Desk, directory: str, names: set[str], gathered: Gathered) -> None:
    path = child(directory, STATE)
    if UNFINISHED in names:
        gathered.find(Severity.ERROR, "marker-unfinished", f"{UNFINISHED} is there: the save was not finished.",
                      Verdict.UNCOMMITTED, child(directory, UNFINISHED))
    if STATE not in names:
        gathered.find(Severity.ERROR, "marker-missing", f"{STATE} is missing, the file that is written last.",
                      Verdict.UNCOMMITTED, path)
        return
    state = desk.json_of(path)
    if not isinstance(state, dict):
        gathered.find(Severity.ERROR, "marker-unusable", f"{STATE}, which is written last, is empty or cut.",
                      Verdict.UNCOMMITTED, path)
        return
    steps: dict[str, int | None] = {}
    step = state.get("global_step")
    if isinstance(step, int) and not isinstance(step, bool):
        gathered.step = step
        gathered.values.setdefault("global_step", step)
        steps[STATE] = step
    epoch = state.get("epoch")
    if isinstance(epoch, int | float):
        gathered.values.setdefault("epoch", epoch)
    own = step_of_part(directory.rpartition("/")[2]) if _DIRECTORY.match(directory.rpartition("/")[2]) else None
    if own is not None:
        steps["the directory's name"] = own.number
    same_step(steps, gathered, directory)
