"""docs/GUARD-MATRIX.md: what each act did without the guard, and how the guard refused it on every layout."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.attack.acts import CONTENT, PLAIN, TOOLS, Act
from tests.support.attack.acts_command import MACHINE, NVME, SCSI
from tests.support.attack.layouts import LAYOUTS
from tests.support.attack.ledger import Cell, table

GROUPS: tuple[tuple[str, tuple[Act, ...]], ...] = (
    ("Writes through the block layer", PLAIN), ("Tools that write to a whole disk or partition", TOOLS),
    ("What uses or repairs the content", CONTENT), ("NVMe commands", NVME), ("SCSI and ATA commands", SCSI),
    ("The machine itself", MACHINE),
)
HEAD = """# The attack matrix of the write guard

Made by `tests/vm/test_guard_matrix.py`, which leaves it as `build/GUARD-MATRIX.md`; copied here when it changes. Each
act (`tests/support/attack/acts*.py`) ran as root, with the disks attached to QEMU **writable**, on each layout
(`layouts.py`) that it means something for. A cell says how it ended: the errno that the tool named, and in brackets the
layers of the guard that counted the refusal. "done, nothing sent" is an act that only read, or that was answered
without asking the disk. "refused" without an errno is a tool that gave up in words of its own (no such array, not
clean, not supported). A dash: the act means nothing there.

The verdict is not taken from the guest's words: in every cell QEMU's trace shows **not one** command other than reads
between the beginning and the end of the act (no write, no flush, no set feature), and after all of them the block log,
the counters and the hash of every disk are as before. An act that reaches a disk would be shown as **WRITES**, and the
test fails.
"""
CONTROL = """## The same acts without the guard

The control run: the same image started by a first stage of the tests' own that arms no guard, the read-only flags
cleared. The number of commands other than reads and flushes that reached a disk (a write is counted twice: as the
device's command, and where it arrives at the block layer), and the first two of them. An act without a number can't be
seen writing here, for the reason given.

| act | layout | without the guard |
|---|---|---|
"""


def _control(acts: Sequence[Act], cells: Sequence[Cell]) -> str:
    seen = {cell.tried.act: cell for cell in cells}
    lines = []
    for act in acts:
        cell = seen.get(act.name)
        if cell is None:
            lines.append(f"| {act.name} | - | {act.why or 'not run'} |")
        else:
            first = ", ".join(dict.fromkeys(cell.reached.changes[:2]))
            lines.append(f"| {act.name} | {cell.tried.layout} | {len(cell.reached.changes)}: {first} |")
    return "\n".join(lines) + "\n"


def document(cells: Sequence[Cell], control: Sequence[Cell]) -> str:
    """The whole document."""
    written = sum(bool(cell.reached.commands) for cell in cells)
    parts = [HEAD, f"\n{len(cells)} cells, {written} with anything but reads.\n"]
    for title, acts in GROUPS:
        used = [layout for layout in LAYOUTS if any(act.on in layout.tags for act in acts)]
        names = {layout.name for layout in used}
        parts.append(f"\n## {title}\n\n")
        parts.append(table([cell for cell in cells if cell.tried.layout in names], [act.name for act in acts],
                           [(layout.name, layout.title) for layout in used]))
    parts += ["\n", CONTROL, _control([act for _, acts in GROUPS for act in acts], control)]
    return "".join(parts)
