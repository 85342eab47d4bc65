"""Read-only loop devices. Source: losetup(8), util-linux 2.38 to 2.41."""

from __future__ import annotations

import json
from dataclasses import dataclass

from rescue_tui.core.command import Command
from rescue_tui.core.errors import FormatError
from rescue_tui.core.text import decode, printable


@dataclass(frozen=True, slots=True)
class LoopDevice:
    """An attached loop; offset and limit in bytes (limit 0: to the end)."""

    node: str
    backing_file: str
    read_only: bool
    offset_bytes: int
    limit_bytes: int


def attach(target: str, *, sector_bytes: int = 512, offset_bytes: int = 0, limit_bytes: int = 0) -> Command:
    """A new read-only loop over a file or device, or over a part of it; prints its node."""
    argv = ["losetup", "--read-only", "--find", "--show"]
    if sector_bytes != 512:
        argv += ["--sector-size", str(sector_bytes)]
    if offset_bytes:
        argv += ["--offset", str(offset_bytes)]
    if limit_bytes:
        argv += ["--sizelimit", str(limit_bytes)]
    return Command((*argv, "--", target), deadline_seconds=60)


def detach(node: str) -> Command:
    """Detach a loop; one that is mounted goes by itself at its unmount."""
    return Command(("losetup", "--detach", node), deadline_seconds=60)


def list_all() -> Command:
    """Every attached loop, as JSON for `parse_list`."""
    return Command(("losetup", "--list", "--json", "--output", "NAME,BACK-FILE,RO,OFFSET,SIZELIMIT"))


def parse_list(output: bytes) -> tuple[LoopDevice, ...]:
    """Read what `list_all` printed (nothing, when no loop is attached); FormatError when it is no such list."""
    if not output.strip():
        return ()
    try:
        return tuple(
            LoopDevice(str(item["name"]), str(item["back-file"] or ""), item["ro"] in (True, 1, "1"),
                       int(item["offset"]), int(item["sizelimit"]))
            for item in json.loads(decode(output))["loopdevices"])
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError("The output of losetup is no list of loop devices.", "", printable(str(error))) from error
