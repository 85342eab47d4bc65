"""Judging one unit of a survey: a lone file by its format's reader, a directory by its layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rescue_tui.checkpoints.desk import Desk, InTurn, Spread
from rescue_tui.checkpoints.layouts import dcp, deepspeed, hf_trainer, megatron, orbax_steps, sharded, tf
from rescue_tui.checkpoints.model import CheckpointFinding, Options, Reading, Verdict
from rescue_tui.checkpoints.registry import MISTAKES, read_lone
from rescue_tui.checkpoints.source import EndOfBytes, UnreadableBytes
from rescue_tui.checkpoints.survey import FILE, Claims, Tally, Unit, survey
from rescue_tui.checkpoints.tree import Tree
from rescue_tui.core.finding import Severity


class Layout(NamedTuple):
    """A kind of save of several files."""

    name: str
    claims: Claims
    judge: Callable[[Desk, Unit], Reading]
    format: str


# In the order of trust: who claims a directory first has it.
LAYOUTS: tuple[Layout, ...] = (
    Layout(orbax_steps.NAME, orbax_steps.claims, orbax_steps.judge, "orbax"),
    Layout(megatron.NAME, megatron.claims, megatron.judge, "megatron"),
    Layout(deepspeed.NAME, deepspeed.claims, deepspeed.judge, "deepspeed"),
    Layout(hf_trainer.NAME, hf_trainer.claims, hf_trainer.judge, "hf-trainer"),
    Layout(dcp.NAME, dcp.claims, dcp.judge, "torch-dcp"),
    Layout(sharded.NAME, sharded.claims, sharded.judge, "safetensors-sharded"),
    Layout(tf.NAME, tf.claims, tf.judge, "tf-bundle"),
)
_BY_NAME = {layout.name: layout for layout in LAYOUTS}
CLAIMS: tuple[Claims, ...] = tuple(layout.claims for layout in LAYOUTS)


def desk_of(tree: Tree, options: Options, spread: Spread | None = None) -> Desk:
    """What a layout works with; without ``spread`` members are read one after the other."""
    return Desk(tree, options, spread or InTurn(tree, options), judge_below)


def judge_unit(desk: Desk, unit: Unit) -> Reading | None:
    """What is said of one unit; None when its content turns out to be no checkpoint."""
    if unit.layout == FILE:
        return read_lone(desk.tree, desk.options, unit.path)
    layout = _BY_NAME[unit.layout]
    try:
        return layout.judge(desk, unit)
    except (UnreadableBytes, EndOfBytes) as error:
        return _failed(layout, unit, "unreadable", Verdict.INCOMPLETE, f"A part can't be read: {error}.")
    except MISTAKES as error:
        return _failed(layout, unit, "reader-failed", Verdict.CORRUPT,
                       f"The reader could not make sense of it ({type(error).__name__}); please report that.")


def judge_alone(tree: Tree, options: Options, unit: Unit) -> Reading | None:
    """As `judge_unit`, for a process that works on this unit alone."""
    return judge_unit(desk_of(tree, options), unit)


def judge_below(desk: Desk, directory: str, without: frozenset[str]) -> Sequence[tuple[Unit, Reading]]:
    """Every save below a directory without the layouts named, lone files in parallel."""
    claims = [layout.claims for layout in LAYOUTS if layout.name not in without]
    units = list(survey(desk.tree, directory, claims, Tally()))
    lone = [unit for unit in units if unit.layout == FILE]
    read = dict(zip([unit.path for unit in lone], desk.spread(read_lone, [unit.path for unit in lone]), strict=True))
    found: list[tuple[Unit, Reading]] = []
    for unit in units:
        reading = read[unit.path] if unit.layout == FILE else judge_unit(desk, unit)
        if reading is not None:
            found.append((unit, reading))
    return found


def _failed(layout: Layout, unit: Unit, code: str, verdict: Verdict, words: str) -> Reading:
    return Reading(layout.format, (CheckpointFinding(Severity.ERROR, code, words, verdict, unit.path),),
                   members=unit.parts)
