"""The build itself: tools tree, kernel modules, Python tree, then mkosi with image/."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from builder.host import BUILD, GIB, TOP, BuildError, cache_dir, output_of, require_root, require_space, require_tools, run, step
from builder.modules import zfs_modules
from builder.toolstree import SOURCES, ensure_tools_tree, kernel_release, refresh_package_lists
from builder.wheels import python_tree

ARTIFACTS = ("stasis.efi", "stasis.vmlinuz", "stasis.initrd", "stasis.cmdline", "stasis.usb.raw", "stasis.manifest")


def version() -> str:
    """``<package version>+g<commit>``, ``.dirty`` when the tree differs from it."""
    namespace: dict[str, str] = {}
    exec((TOP / "rescue_tui/__init__.py").read_text(), namespace)  # our own two lines: one place for the version
    plain = namespace["__version__"]
    if not (TOP / ".git").exists() or shutil.which("git") is None:
        return plain
    git = ["git", "-c", f"safe.directory={TOP}", "-C", str(TOP)]
    commit = output_of([*git, "rev-parse", "--short=12", "HEAD"])
    dirty = output_of([*git, "status", "--porcelain", "--untracked-files=no"])
    return f"{plain}+g{commit}{'.dirty' if dirty else ''}"


def _sandbox_tree(parent: Path) -> Path:
    """An apt configuration that replaces all of mkosi's own sources."""
    etc = parent / "etc/apt/sources.list.d"
    etc.mkdir(parents=True)
    lines = [line.replace("deb ", "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ", 1)
             for line in SOURCES.splitlines()]
    # mkosi writes mkosi.sources unless it is there; an empty one keeps it from doing so.
    (etc / "mkosi.sources").write_text("")
    (etc / "stasis.list").write_text("\n".join(lines) + "\n")
    return parent


def build(extra: Sequence[str] = ()) -> None:
    """Build everything below build/. ``extra`` are further arguments for mkosi. Raises BuildError."""
    require_root()
    require_tools("mmdebstrap", "unshare", "chroot")
    require_space(cache_dir(), 5 * GIB)
    require_space(BUILD, 3 * GIB)
    tools = ensure_tools_tree()
    refresh_package_lists(tools)
    kernel = kernel_release(tools)
    modules = zfs_modules(tools, kernel)
    python = python_tree()
    packages = cache_dir() / "packages"
    packages.mkdir(exist_ok=True)
    step(f"building the image with kernel {kernel}")
    with tempfile.TemporaryDirectory(prefix="stasis-build-") as scratch:
        sandbox = _sandbox_tree(Path(scratch) / "sandbox")
        env = dict(os.environ)
        env["PYTHONPATH"] = str(tools / "usr/lib/python3/dist-packages")
        run(
            ["python3", "-m", "mkosi", f"--directory={TOP}", f"--tools-tree={tools}", f"--sandbox-tree={sandbox}",
             f"--package=linux-image-{kernel}", f"--skeleton-tree={modules}", f"--extra-tree={python}",
             f"--package-cache-dir={packages}", f"--environment=VERSION_STASIS={version()}", "--force", *extra, "build"],
            env=env, what="mkosi",
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
    step(f"done: {BUILD}/stasis.efi is {(BUILD / 'stasis.efi').stat().st_size / 1e6:.0f} MB")
