"""Start a process that outlives us: a transient systemd unit, or a session of its own where systemd isn't in charge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rescue_tui.core.command import Command, Completed
from rescue_tui.system.runner import Runner

RUNTIME_DIR = Path("/run/systemd/system")


def in_charge(runtime_dir: Path = RUNTIME_DIR) -> bool:
    """True when systemd is PID 1 (sd_booted(3))."""
    return runtime_dir.is_dir()


def unit_command(
    unit: str, argv: Sequence[str], *, readable_devices: Sequence[str], description: str, output: Path
) -> Command:
    """systemd-run for a job that may open only the devices named, and only for reading.

    DevicePolicy=closed allows /dev/null and its like besides. A file system on the destination is written through
    its mount, not through its device node, so the destination needs no entry. KillMode=mixed: a stop goes to our
    process first, which stops its tool in an orderly way; what is left is killed. Type=exec: a program that can't be
    started is an error of systemd-run. What the process prints is appended to ``output``.
    """
    words = ["systemd-run", f"--unit={unit}", f"--description={description}", "--collect", "--quiet",
             "--property=Type=exec", "--property=DevicePolicy=closed", "--property=KillMode=mixed",
             "--property=TimeoutStopSec=90", "--property=OOMScoreAdjust=-500",
             f"--property=StandardOutput=append:{output}", f"--property=StandardError=append:{output}"]
    words += [f"--property=DeviceAllow={device} r" for device in readable_devices]
    return Command((*words, "--", *argv), deadline_seconds=60)


def session_command(argv: Sequence[str]) -> Command:
    """setsid for the same without systemd: a new session has no terminal, so no hang-up reaches it."""
    return Command(("setsid", "--fork", *argv), deadline_seconds=60)


async def start(runner: Runner, command: Command, output: Path) -> Completed:
    """Run one of the two commands; what the process prints from then on goes to ``output``."""
    running = await runner.start(command, stdout=output, stderr=output)
    return await running.wait()
