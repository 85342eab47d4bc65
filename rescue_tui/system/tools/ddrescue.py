"""The command line of GNU ddrescue, and its version. Source: ddrescue(1) of 1.27 and 1.29, main.cc, rescuebook.cc."""

from __future__ import annotations

import re

from rescue_tui.core.command import Command
from rescue_tui.core.text import decode, printable
from rescue_tui.system.runner import Runner

# Interval of mapfile saves. Each save flushes the image first (mapbook.cc, update_mapfile), so what the mapfile calls
# rescued is on the disk; a save is kept as .bak only when it was itself flushed, hence save and flush together.
# Direct output has nothing to flush, so 5 s of work are at stake; buffered output stalls at each flush.
DIRECT_SAVE_SECONDS = 5
BUFFERED_SAVE_SECONDS = 30
_VERSION = re.compile(r"^GNU ddrescue (\S+)", re.MULTILINE)


def arguments(
    *, source: str, image: str, mapfile: str, events_log: str, rates_log: str, size_bytes: int, sector_bytes: int,
    cluster_sectors: int, direct_output: bool, sparse: bool, preallocate: bool, retries: int,
) -> tuple[str, ...]:
    """The argv for one source to one image.

    ``-d`` always (the page cache would hide which sector failed and read ahead into bad ones). No ``--force``: that
    is for output devices, and the output here is a file. No ``--max-error-rate``: it would stop on a disk that fails
    fast, and a pulled disk is recognised in sysfs instead. With ``-S`` also ``-x``: a source that ends in zeros or in
    bad sectors still gives an image of its full size, whatever run wrote the end.
    """
    save = DIRECT_SAVE_SECONDS if direct_output else BUFFERED_SAVE_SECONDS
    words = ["ddrescue", "-d", f"-r{retries}", "-b", str(sector_bytes), "-c", str(cluster_sectors)]
    if direct_output:
        words.append("-D")
    if sparse:
        words += ["-S", "-x", str(size_bytes)]
    elif preallocate:
        words.append("-p")
    words += [f"--log-events={events_log}", f"--log-rates={rates_log}", f"--mapfile-interval={save},{save}",
              source, image, mapfile]
    return tuple(words)


async def version(runner: Runner) -> str:
    """``1.27``; empty when it can't be told. SetupError when ddrescue is missing."""
    done = await runner.attempt(Command(("ddrescue", "--version"), deadline_seconds=10))
    match = _VERSION.search(decode(done.stdout))
    return printable(match.group(1), 40) if match else ""
