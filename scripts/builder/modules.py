"""Kernel modules that Debian ships only as source: ZFS, built for exactly the image's kernel.

The result is cached by kernel release, kernel package version and ZFS version, so that a second build takes none of
the five minutes that the first one takes on two cores. The tree with kernel headers and compiler is kept as well; the
write guard (builder.guard) is compiled in it, which takes seconds.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from builder.host import BuildError, cache_dir, run, step
from builder.toolstree import bootstrap, candidate_version, in_tree, sources_of

HEADERS_PACKAGES = ("dkms", "build-essential", "zstd", "xz-utils", "kmod")


def headers_tree(tools: Path, kernel: str) -> Path:
    """A Debian root with the headers of ``kernel`` and a compiler, made now unless cached. Raises BuildError."""
    version = candidate_version(tools, f"linux-headers-{kernel}")
    root = cache_dir() / f"headers-{kernel}-{version}".replace(":", "_")
    if (root / ".complete").exists():
        return root
    step(f"fetching the headers of {kernel} and a compiler (a minute; cached afterwards)")
    for stale in cache_dir().glob("headers-*"):
        shutil.rmtree(stale)
    log = cache_dir() / "headers.log"
    log.unlink(missing_ok=True)
    run(bootstrap(root, (f"linux-headers-{kernel}", *HEADERS_PACKAGES), sources_of(tools)), log=log,
        what="mmdebstrap (kernel headers)")
    # The package's own postinst would compile for whatever kernel it believes to run; we ask for the one we want.
    marker = root / "etc/dkms/no-autoinstall"
    marker.parent.mkdir(exist_ok=True)
    marker.touch()
    (root / ".complete").touch()
    return root


def zfs_modules(tools: Path, kernel: str) -> Path:
    """A tree with ``usr/lib/modules/<kernel>/updates/dkms/*.ko.xz``, compiled now unless cached."""
    kernel_version = candidate_version(tools, f"linux-image-{kernel}")
    zfs_version = candidate_version(tools, "zfs-dkms")
    tree = cache_dir() / "modules" / f"zfs-{zfs_version}-{kernel}-{kernel_version}".replace(":", "_")
    if (tree / ".complete").exists():
        return tree
    work = headers_tree(tools, kernel)
    step(f"compiling ZFS {zfs_version} for {kernel} (five minutes; cached afterwards)")
    shutil.rmtree(tree, ignore_errors=True)
    log = cache_dir() / "modules.log"
    log.unlink(missing_ok=True)
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    run(in_tree(work, [*apt, "update", "-q"]), log=log, what="apt-get update")
    run(in_tree(work, [*apt, "install", "-y", "--no-install-recommends", "zfs-dkms"]), log=log,
        what="installing zfs-dkms")
    plain_version = zfs_version.split("-")[0].split(":")[-1]
    run(in_tree(work, ["dkms", "install", "--force", f"zfs/{plain_version}", "-k", kernel]), log=log, what="dkms")
    built = sorted((work / "usr/lib/modules" / kernel / "updates/dkms").glob("*.ko*"))
    if not {"zfs", "spl"} <= {path.name.split(".")[0] for path in built}:
        raise BuildError(f"dkms left no zfs and spl modules for {kernel}. See {log}.")
    target = tree / "usr/lib/modules" / kernel / "updates/dkms"
    target.mkdir(parents=True)
    for path in built:
        shutil.copy2(path, target / path.name)
    (tree / ".complete").touch()
    return tree
