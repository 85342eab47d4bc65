"""The Python packages of the image: pinned wheels with hashes, and our own package, in one tree for ExtraTrees=."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from builder.host import BUILD, TOP, BuildError, cache_dir, run, step

PYTHON = "3.13"
_SITE = f"usr/local/lib/python{PYTHON}/dist-packages"


def _pip() -> list[str]:
    """pip of the environment that scripts/setup made: Debian's own Python comes without."""
    ours = TOP / ".venv/bin/python"
    python = str(ours) if ours.exists() else sys.executable
    return [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]


def _dependencies() -> Path:
    """A directory with the wheels of image/requirements.txt unpacked, cached by the content of that file."""
    requirements = TOP / "image/requirements.txt"
    tree = cache_dir() / "wheels" / f"{PYTHON}-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]}"
    if (tree / ".complete").exists():
        return tree
    step("fetching the Python packages of the image")
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    log = cache_dir() / "wheels.log"
    log.unlink(missing_ok=True)
    try:
        run(
            [*_pip(), "install", "--target", tree, "--no-deps", "--require-hashes", "--only-binary=:all:",
             "--python-version", PYTHON, "--implementation", "cp", "--abi", f"cp{PYTHON.replace('.', '')}",
             "--abi", "none", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64",
             "--no-compile", "-r", requirements],
            log=log, what="pip",
        )
    except BuildError as error:
        raise BuildError(f"the Python packages could not be fetched. Check the network.\n{error}") from error
    (tree / ".complete").touch()
    return tree


def python_tree() -> Path:
    """A tree with the dependencies and our package below usr/local/lib, made anew at each build."""
    dependencies = _dependencies()
    tree = BUILD / "python-tree"
    shutil.rmtree(tree, ignore_errors=True)
    site = tree / _SITE
    shutil.copytree(dependencies, site, ignore=shutil.ignore_patterns(".complete", "bin", "__pycache__"))
    shutil.copytree(TOP / "rescue_tui", site / "rescue_tui", ignore=shutil.ignore_patterns("__pycache__"))
    # mkosi takes mode and times as they are; a clone's umask must not decide what root may read.
    for path in (tree, *tree.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return tree
