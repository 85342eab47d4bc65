"""``python -m tests.bench [NAME...]``: run the benches (all, or the named ones) and write build/bench.json."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from builder.host import BUILD, BuildError, fail

from tests.bench import boot, checkpoints, guard, imaging
from tests.bench.figures import Figure, write

BENCHES: dict[str, Callable[[], Iterator[Figure]]] = {
    "size": boot.size, "boot": boot.boot_time, "imaging": imaging.imaging, "guard": guard.guard,
    "checkpoints": checkpoints.checkpoints,
}


def main(names: list[str]) -> int:
    """Run, print and write. 2 for an unknown name, 1 when a target was missed."""
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        print(f"no bench is called {', '.join(unknown)}; there are {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    figures: list[Figure] = []
    for name in names or BENCHES:
        for figure in BENCHES[name]():
            figures.append(figure)
            print(figure.line, flush=True)
    write(figures, BUILD / "bench.json")
    return 1 if any(figure.met is False for figure in figures) else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except BuildError as error:
        fail(error)
