"""The write guard's kernel module (image/guard), compiled for exactly the image's kernel.

Cached by kernel release, kernel package version and the bytes of its sources: a change of a source costs seconds, an
unchanged one nothing.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from builder.host import TOP, BuildError, cache_dir, run, step
from builder.modules import headers_tree
from builder.toolstree import candidate_version, in_tree

SOURCES = TOP / "image/guard"
MODULE = "stasis_guard"
# Kept per set of sources; branches and test builds take turns.
KEPT = 12


def source_files(directory: Path = SOURCES) -> tuple[Path, ...]:
    """What the module is made of, in a fixed order."""
    return tuple(sorted(path for path in directory.iterdir() if path.suffix in {".c", ".h"} or path.name == "Kbuild"))


def source_digest(files: Sequence[Path], *words: str) -> str:
    """A name for these sources together with what else decides the result."""
    digest = hashlib.sha256(repr(words).encode())
    for path in files:
        digest.update(f"\n{path.name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def guard_module(tools: Path, kernel: str) -> Path:
    """A tree with ``usr/lib/modules/<kernel>/updates/dkms/stasis_guard.ko``, compiled now unless cached.

    Raises BuildError with what the compiler said; a warning is an error.
    """
    files = source_files()
    version = candidate_version(tools, f"linux-image-{kernel}")
    store = cache_dir() / "modules"
    tree = store / f"guard-{kernel}-{source_digest(files, kernel, version)}"
    if (tree / ".complete").exists():
        return tree
    root = headers_tree(tools, kernel)
    step(f"compiling the write guard for {kernel}")
    shutil.rmtree(tree, ignore_errors=True)
    log = cache_dir() / "guard.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="stasis-guard-") as scratch:
        # Not in /tmp of the tree, which is an empty one of its own.
        work = root / "srv" / Path(scratch).name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            for path in files:
                shutil.copyfile(path, work / path.name)
            inside = f"/srv/{work.name}"
            run(in_tree(root, ["make", "-C", f"/usr/lib/modules/{kernel}/build", f"M={inside}", "KCFLAGS=-Werror",
                               "modules"]), log=log, what="compiling the write guard")
            run(in_tree(root, ["strip", "--strip-debug", f"{inside}/{MODULE}.ko"]), log=log, what="strip")
            target = tree / "usr/lib/modules" / kernel / "updates/dkms"
            target.mkdir(parents=True)
            shutil.copyfile(work / f"{MODULE}.ko", target / f"{MODULE}.ko")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    if "warning:" in log.read_text(errors="replace"):
        shutil.rmtree(tree)
        raise BuildError(f"the write guard compiles with a warning, which it must not. See {log}.")
    (tree / ".complete").touch()
    for stale in sorted(store.glob("guard-*"), key=lambda path: path.stat().st_mtime, reverse=True)[KEPT:]:
        shutil.rmtree(stale, ignore_errors=True)
    return tree
