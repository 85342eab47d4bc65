"""The real services on loop devices that carry serials, and the command line on them as a process of its own.

A loop device has no serial, so none could be granted; nothing else is pretended.
`python -m tests.support.loop_services STATE NODE=SERIAL... -- VERB...`
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rescue_tui import cli
from rescue_tui.core.device import Disk
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.services import Services
from rescue_tui.system.workspace import Workspace


class LoopServices(Services):
    """The real services; ``serials`` tells the serial of each loop device by its node."""

    def __init__(self, state: Path, serials: Mapping[str, str]) -> None:
        super().__init__(Workspace(state))
        self._serials = serials

    async def snapshot(self) -> Snapshot:
        """As it is, with serials."""
        seen = await super().snapshot()
        return replace(seen, disks=tuple(self._named(disk) for disk in seen.disks))

    def _named(self, disk: Disk) -> Disk:
        serial = self._serials.get(disk.node)
        return disk if serial is None else replace(disk, serial=serial)


def main(words: list[str]) -> int:
    """Run one verb; the exit status."""
    cut = words.index("--")
    serials = dict(word.split("=", 1) for word in words[1:cut])
    return cli.run(words[cut + 1:], lambda: LoopServices(Path(words[0]), serials), lambda _services: 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
