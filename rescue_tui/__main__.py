"""The `stasis` program: the interface without arguments, the command line with a verb."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import TextIO

from rescue_tui import cli
from rescue_tui.services import Services

JOB_WORD = "__job"


def main() -> int:
    """Entry point of the console script; the exit status."""
    sys.excepthook = _crash
    argv = sys.argv[1:]
    # Python leaves out streams that the caller closed.
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a letter gets its escape, never a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if argv[:1] == [JOB_WORD] and len(argv) == 2:
        # What `JobManager` starts; no verb for people, so the parser doesn't know it.
        from rescue_tui.jobs import worker  # noqa: PLC0415  only the worker's process needs it

        return worker.main(Path(argv[1]))
    return cli.run(argv, Services, _tui)


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _tui(services: Services) -> int:
    # Textual is slow to import and no verb needs it.
    from rescue_tui.ui import app  # noqa: PLC0415

    services.be_prompt()
    return app.run(services)


def _crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A mistake in Stasis. Python would end with status 1, which means "finished, damage found"."""
    traceback.print_exception(kind, error, trace)
    status = cli.crashed(sys.argv[1:], f"{kind.__name__}: {error}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
