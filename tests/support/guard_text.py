"""The text of ``/proc/stasis_guard/state`` for tests, and a kernel that obeys the guard's commands."""

from __future__ import annotations

from rescue_tui.core.guardstate import DISK_KINDS, LAYER_WORDS


def disk_line(dev: str, diskseq: int, name: str, *, protected: int = 1, granted: int = 0, read_only: int = 1,
              flush_kept: int = 0, **refused: int) -> str:
    """A disk line; ``refused`` by kind."""
    counts = " ".join(f"{kind}={refused.get(kind, 0)}" for kind in DISK_KINDS)
    return (f"disk dev={dev} diskseq={diskseq} name={name} protected={protected} granted={granted} "
            f"read_only={read_only} {counts} flush_kept={flush_kept}")


def state_text(*lines: str, armed: int = 1, sealed: int = 1, loose: str = "", refused: int = 0) -> str:
    """A whole state; ``loose`` names a layer that is not armed, ``refused`` is what every layer counted."""
    layers = [f"layer name={name} armed={int(name != loose)} refused={refused}" for name in LAYER_WORDS]
    return "\n".join([f"guard version=1 armed={armed} sealed={sealed} kernel=6.12.0-amd64", *layers, *lines, ""])
