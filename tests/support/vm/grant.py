"""Granting a disk straight in the guest's kernel, for tests that write on purpose: the flag alone opens nothing."""

from __future__ import annotations

CONTROL = "/proc/stasis_guard/control"


def grant_script(disk: str) -> str:
    """Shell words that grant the whole disk ``disk`` (a node, or a shell variable that holds one)."""
    return (
        f"{{ name=$(basename {disk}) && "
        f"echo grant $(cat /sys/block/$name/dev /sys/block/$name/diskseq) > {CONTROL}; }}"
    )
