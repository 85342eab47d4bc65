"""What the builder needs of the machine that it runs on, and how it says what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

TOP = Path(__file__).resolve().parents[2]
BUILD = TOP / "build"
GIB = 1 << 30


class BuildError(Exception):
    """One sentence that says what happened, and one that says what to do next."""


def cache_dir() -> Path:
    """The directory for downloads, the tools tree and compiled kernel modules; ``STASIS_CACHE`` moves it."""
    given = os.environ.get("STASIS_CACHE")
    path = Path(given) if given else Path("/var/cache/stasis")
    path.mkdir(parents=True, exist_ok=True)
    return path


def step(text: str) -> None:
    """Say what is being done now, with the time, on stderr."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def fail(error: BuildError) -> NoReturn:
    """Print a refusal and leave with status 1."""
    print(f"stasis build: {error}", file=sys.stderr)
    raise SystemExit(1)


def require_root() -> None:
    """Raise :class:`BuildError` unless we are root: chroot, mounts and file ownership need it."""
    if os.geteuid() != 0:
        raise BuildError("building the image needs root. Run it again with sudo.")


def require_tools(*names: str) -> None:
    """Raise :class:`BuildError` that names every missing program at once."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise BuildError(f"missing programs: {', '.join(missing)}. `scripts/setup` installs them.")


def require_space(path: Path, need_bytes: int) -> None:
    """Raise :class:`BuildError` when the file system of ``path`` has fewer than ``need_bytes`` free bytes."""
    path.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path).free
    if free < need_bytes:
        raise BuildError(
            f"{path} has {free / GIB:.1f} GiB free, the build needs {need_bytes / GIB:.1f} GiB. "
            "Free some space, or point STASIS_CACHE at a larger disk."
        )


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
    what: str = "",
) -> None:
    """Run a command to its end; on failure raise :class:`BuildError` with the tail of its output.

    With ``log`` the output goes to that file, otherwise to stderr. Standard input is always empty.
    """
    words = [str(word) for word in argv]
    sink = log.open("ab") if log else None
    try:
        done = subprocess.run(
            words, env=dict(env) if env is not None else None, cwd=cwd, stdin=subprocess.DEVNULL,
            stdout=sink or sys.stderr, stderr=sink or sys.stderr, check=False,
        )
    finally:
        if sink:
            sink.close()
    if done.returncode:
        tail = ""
        if log:
            tail = "\n" + "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        raise BuildError(f"{what or words[0]} failed with status {done.returncode}: {' '.join(words)}{tail}")


def output_of(argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> str:
    """Standard output of a command, stripped; :class:`BuildError` when it fails."""
    words = [str(word) for word in argv]
    done = subprocess.run(
        words, env=dict(env) if env is not None else None, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )
    if done.returncode:
        raise BuildError(f"{words[0]} failed with status {done.returncode}: {' '.join(words)}\n{done.stderr[-2000:]}")
    return done.stdout.strip()
