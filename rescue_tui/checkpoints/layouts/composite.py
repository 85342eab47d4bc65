"""What trainers' directories have in common: parts of other layouts, one step for all, a pointer file beside them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from rescue_tui.checkpoints.desk import Desk, Gathered
from rescue_tui.checkpoints.model import Reading, Scalar, Verdict
from rescue_tui.checkpoints.names import step_of_part
from rescue_tui.checkpoints.pickles import fields
from rescue_tui.checkpoints.survey import FILE, Unit
from rescue_tui.checkpoints.tree import Kind, child
from rescue_tui.core.finding import Severity

# Names, in order of trust, under which trainers keep the step; the whole dotted name is compared.
STEP_NAMES = ("global_step", "global_steps", "iteration", "step", "current_step", "train_step", "num_updates", "iter",
              "trainer.global_step", "state.global_step", "state.step", "train_state.step", "args.iteration",
              "global_step/.ATTRIBUTES/VARIABLE_VALUE", "step/.ATTRIBUTES/VARIABLE_VALUE", "opt_state.step")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a trainer's directory: its path within the directory, its unit and what was read."""

    inner: str
    unit: Unit
    reading: Reading

    @property
    def stem(self) -> str:
        """The last name of its path without the ending, as a prefix for names of tensors."""
        name = self.inner.rpartition("/")[2]
        return name.rpartition(".")[0] or name


def parts_of(desk: Desk, directory: str, without: Collection[str]) -> list[Part]:
    """Every save within a directory, as a part of one; layouts named in ``without`` are not looked for."""
    return [Part(unit.path[len(directory) + 1 if directory else 0 :], unit, reading)
            for unit, reading in desk.judge_below(desk, directory, frozenset(without))]


def all_members(desk: Desk, directory: str, gathered: Gathered) -> None:
    """Every file of the directory is a member, whatever it is."""
    gathered.members.extend(entry.path for entry in desk.files_below(directory))


def step_of_values(values: Mapping[str, Scalar]) -> int | None:
    """The step that a save tells itself."""
    for name in STEP_NAMES:
        value = values.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62:
            return value
    return None


def same_step(parts: Mapping[str, int | None], gathered: Gathered, directory: str) -> int | None:
    """The step that all parts agree on; a finding where they are of different saves."""
    steps: dict[int, list[str]] = defaultdict(list)
    for name, step in parts.items():
        if step is not None:
            steps[step].append(name)
    if len(steps) > 1:
        told = "; ".join(f"{step}: {', '.join(sorted(names)[:4])}" for step, names in sorted(steps.items()))
        gathered.find(Severity.ERROR, "steps-mixed", f"The parts are of different steps ({told}).",
                      Verdict.INCONSISTENT, directory)
    return max(steps) if steps else None


def pointer(desk: Desk, directory: str, file: str, gathered: Gathered) -> None:
    """Compare a trainer's pointer beside the save, which it writes last, with the save's own name."""
    parent, slash, name = directory.rpartition("/")
    if not name:
        return  # the root of the scan: what lies beside it is not seen
    beside = desk.listing(parent if slash else "")
    if not beside:
        return
    text = (desk.text_of(child(parent, file)) or "") if file in beside else ""
    mine, told = step_of_part(name), step_of_part(text.splitlines()[0].strip()) if text else None
    path = child(parent, file)
    if text and (text == name or (mine and told and mine.number <= told.number)):
        return
    siblings = [step_of_part(other) for other, entry in beside.items()
                if entry.kind is Kind.DIRECTORY and other != name and _alike(other, name)]
    if mine and any(other and other.number > mine.number for other in siblings):
        return  # an older save: the pointer was moved on since, whatever became of it
    if text and mine and told:
        gathered.find(Severity.ERROR, "pointer-behind", f"{file}, which is written last, still points to {text[:40]}: "
                      "this save was never declared complete.", Verdict.UNCOMMITTED, path)
    elif not text:
        gathered.find(Severity.ERROR, "pointer-missing", f"{file}, which is written last, "
                      f"{'is empty' if file in beside else 'is missing'}.", Verdict.UNCOMMITTED, path)


def _alike(one: str, other: str) -> bool:
    return re.sub(r"\d+", "0", one) == re.sub(r"\d+", "0", other)


def find_field(node: object, *names: str) -> object:
    """A field of an inert tree by its path; None where one of them is missing."""
    for name in names:
        node = fields(node).get(name)
        if node is None:
            return None
    return node


def whole(node: object, most: int = 1 << 20) -> int | None:
    """A count as a number, within reason; of a list (one for each parameter group) the largest."""
    if isinstance(node, list | tuple) and node:
        numbers = [number for item in node if (number := whole(item, most)) is not None]
        return max(numbers) if numbers else None
    return node if isinstance(node, int) and not isinstance(node, bool) and 0 < node <= most else None


def file_parts(parts: list[Part]) -> Iterator[Part]:
    """Those that are lone files."""
    return (part for part in parts if part.unit.layout == FILE)
