"""The build itself: tools tree, kernel modules, Python tree, then mkosi with image/."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from builder.guard import guard_module
from builder.host import (
    BUILD,
    GIB,
    TOP,
    BuildError,
    cache_dir,
    output_of,
    require_root,
    require_space,
    require_tools,
    run,
    step,
)
from builder.modules import zfs_modules
from builder.toolstree import ensure_tools_tree, kernel_release, refresh_package_lists, sources_of
from builder.wheels import python_tree

STAMP = "stasis.inputs"
ARTIFACTS = ("stasis.efi", "stasis.vmlinuz", "stasis.initrd", "stasis.cmdline", "stasis.usb.raw", "stasis.manifest")


def version() -> str:
    """``<package version>+g<commit>``, ``.dirty`` when the tree differs from it."""
    found = re.search(r'^__version__ = "([^"]+)"$', (TOP / "rescue_tui/__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise BuildError("rescue_tui/__init__.py names no version.")
    plain = found[1]
    if not (TOP / ".git").exists() or shutil.which("git") is None:
        return plain
    git = ["git", "-c", f"safe.directory={TOP}", "-C", str(TOP)]
    commit = output_of([*git, "rev-parse", "--short=12", "HEAD"])
    dirty = output_of([*git, "status", "--porcelain", "--untracked-files=no"])
    return f"{plain}+g{commit}{'.dirty' if dirty else ''}"


def _sandbox_tree(parent: Path, sources: Sequence[str]) -> Path:
    """An apt configuration that replaces all of mkosi's own sources."""
    etc = parent / "etc/apt/sources.list.d"
    etc.mkdir(parents=True)
    lines = [line.replace("deb ", "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ", 1)
             for line in sources]
    # mkosi writes mkosi.sources unless it is there; an empty one keeps it from doing so.
    (etc / "mkosi.sources").write_text("")
    (etc / "stasis.list").write_text("\n".join(lines) + "\n")
    return parent


def _inputs_digest() -> str:
    """A hash over everything in the clone that goes into the image."""
    digest = hashlib.sha256()
    names = [TOP / "mkosi.conf", TOP / "pyproject.toml"]
    for part in ("image", "rescue_tui", "scripts/builder"):
        names.extend(path for path in (TOP / part).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    for path in sorted(names):
        digest.update(f"{path.relative_to(TOP)} {path.stat().st_mode & 0o111} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_current() -> bool:
    """True when every artifact is there and was built from these very inputs."""
    stamp = BUILD / STAMP
    return (stamp.exists() and stamp.read_text().strip() == _inputs_digest()
            and all((BUILD / name).exists() for name in ARTIFACTS))


def build(extra: Sequence[str] = ()) -> None:
    """Build everything below build/. ``extra`` are further arguments for mkosi; ``--if-needed`` is ours and skips the
    build when `is_current`. Raises BuildError.
    """
    if "--if-needed" in extra and is_current():
        step("the image is up to date")
        return
    extra = [word for word in extra if word != "--if-needed"]
    inputs = _inputs_digest()
    (BUILD / STAMP).unlink(missing_ok=True)
    require_root()
    require_tools("mmdebstrap", "unshare", "chroot")
    require_space(cache_dir(), 5 * GIB)
    require_space(BUILD, 3 * GIB)
    tools = ensure_tools_tree()
    refresh_package_lists(tools)
    kernel = kernel_release(tools)
    modules = zfs_modules(tools, kernel)
    guard = guard_module(tools, kernel)
    python = python_tree()
    packages = cache_dir() / "packages"
    packages.mkdir(exist_ok=True)
    log = BUILD / "mkosi.log"
    log.unlink(missing_ok=True)
    step(f"building the image with kernel {kernel} (about a minute; what mkosi says goes to build/mkosi.log)")
    with tempfile.TemporaryDirectory(prefix="stasis-build-") as scratch:
        sandbox = _sandbox_tree(Path(scratch) / "sandbox", sources_of(tools))
        env = dict(os.environ)
        env["PYTHONPATH"] = str(tools / "usr/lib/python3/dist-packages")
        run(
            ["python3", "-m", "mkosi", f"--directory={TOP}", f"--tools-tree={tools}", f"--sandbox-tree={sandbox}",
             f"--package=linux-image-{kernel}", f"--skeleton-tree={modules}", f"--skeleton-tree={guard}",
             f"--extra-tree={python}",
             f"--package-cache-dir={packages}", f"--environment=VERSION_STASIS={version()}",
             "--force", *extra, "build"],
            env=env, log=log, what="mkosi",
        )
    if not os.environ.get("STASIS_KEEP_ROOT"):
        shutil.rmtree(BUILD / "stasis-root", ignore_errors=True)
    (BUILD / "stasis-root.vmlinuz").unlink(missing_ok=True)
    shutil.rmtree(python, ignore_errors=True)
    manifest = BUILD / "stasis-root.manifest"
    if manifest.exists():
        manifest.replace(BUILD / "stasis.manifest")
    missing = [name for name in ARTIFACTS if not (BUILD / name).exists()]
    if missing:
        raise BuildError(f"the build ended without {', '.join(missing)}. Its output above tells why.")
    (BUILD / STAMP).write_text(inputs + "\n")
    step(f"done: {BUILD}/stasis.efi is {(BUILD / 'stasis.efi').stat().st_size / 1e6:.0f} MB")
