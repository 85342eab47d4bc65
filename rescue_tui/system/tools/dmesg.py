"""The kernel's messages, by journalctl where a journal runs, else by dmesg."""

from __future__ import annotations

from datetime import datetime

from rescue_tui.core.command import Command
from rescue_tui.core.text import printable_lines
from rescue_tui.system.runner import Runner


async def kernel_log(runner: Runner, since: datetime | None = None) -> str:
    """Kernel messages of this boot (since a moment), made printable; a sentence in brackets when there are none.

    dmesg keeps a bounded ring, so old messages may be missing; the journal has them all.
    """
    if runner.has("journalctl"):
        words = ["journalctl", "--dmesg", "--boot", "--no-pager", "--output=short-iso-precise", "--quiet", "--utc"]
        if since is not None:
            words.append(f"--since=@{int(since.timestamp())}")
        done = await runner.attempt(Command(tuple(words), deadline_seconds=60))
        if done.ok and done.stdout.strip():
            return printable_lines(done.stdout, None)
    words = ["dmesg", "--time-format", "iso"]
    if since is not None:
        words += ["--since", f"@{int(since.timestamp())}"]
    done = await runner.attempt(Command(tuple(words), deadline_seconds=30))
    if not done.ok:
        return f"(the kernel log can't be read: {printable_lines(done.stderr, 400).strip()})\n"
    return printable_lines(done.stdout, None) or "(no kernel message in this time)\n"
