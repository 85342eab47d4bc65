"""What `Safe` makes of text for a cell."""

from __future__ import annotations

from rich.cells import cell_len

from rescue_tui.ui.safe import Safe


def test_clip_middle_keeps_what_differs() -> None:
    safe = Safe()
    first, second = (safe.clip_middle(f"S5GXNX0T9-BATCH-2026-{n:06}", 20) for n in (1, 2))
    assert first != second
    assert len(first) == 20
    assert safe.clip_middle("short", 20) == "short"
    assert all(cell_len(safe.clip_middle("\u4e2d" * 30, width)) <= width for width in range(25))
