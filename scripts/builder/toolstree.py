"""The tools tree: a Debian 13 root that brings mkosi and every other tool of the build, whatever the host is.

Only mmdebstrap is asked of the host (Debian 12 or 13). The tree is made once and kept in the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from builder.host import TOP, BuildError, cache_dir, output_of, require_tools, run, step

SUITE = "trixie"
COMPONENTS = "main contrib non-free-firmware"
MIRROR = os.environ.get("STASIS_MIRROR", "")
SECURITY_MIRROR = os.environ.get("STASIS_SECURITY_MIRROR", "")
# Without a mirror of one's own, mmdebstrap takes Debian's, with updates and security; everything after it (modules,
# image) uses what it wrote down in the tools tree.
OWN_SOURCES = tuple(
    f"deb {mirror} {suite} {COMPONENTS}"
    for mirror, suite in ((MIRROR, SUITE), (MIRROR, f"{SUITE}-updates"), (SECURITY_MIRROR, f"{SUITE}-security"))
    if mirror
)
PACKAGES = (
    "mkosi", "systemd-repart", "systemd-ukify", "systemd-boot-efi", "ca-certificates", "mtools", "dosfstools",
    "erofs-utils", "zstd", "xz-utils", "cpio", "kmod", "python3-pip", "e2fsprogs", "apt-utils",
    "debian-archive-keyring", "openssl", "busybox-static", "binutils",
)


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


def ensure_tools_tree() -> Path:
    """Path of a tools tree that holds :data:`PACKAGES`; made now when the cache has none.

    Raises :class:`BuildError` with a sentence about the network when no package list can be had.
    """
    root = cache_dir() / f"tools-{SUITE}-{_digest(PACKAGES, COMPONENTS, OWN_SOURCES)}"
    if (root / ".complete").exists():
        return root
    require_tools("mmdebstrap")
    step("making the tools tree (Debian 13, about half a minute)")
    for stale in cache_dir().glob("tools-*"):
        shutil.rmtree(stale)
    log = cache_dir() / "tools.log"
    log.unlink(missing_ok=True)
    try:
        run(
            bootstrap(root, PACKAGES, OWN_SOURCES), log=log, what="mmdebstrap",
        )
    except BuildError as error:
        raise BuildError(
            f"the Debian packages could not be fetched{f' from {MIRROR}' if MIRROR else ''}. "
            f"Check the network or set STASIS_MIRROR to a mirror that this machine reaches.\n{error}"
        ) from error
    (root / ".complete").touch()
    return root


def bootstrap(root: Path, packages: Sequence[str], sources: Sequence[str]) -> list[str]:
    """The argv that makes a Debian root with ``packages``; without ``sources`` from Debian's own mirror."""
    return ["mmdebstrap", "--variant=apt", f"--components={COMPONENTS.replace(' ', ',')}",
            f"--include={','.join(packages)}", "--format=directory", SUITE, str(root), *sources]


def sources_of(tools: Path) -> tuple[str, ...]:
    """The one-line apt sources (``deb MIRROR SUITE COMPONENTS``) that the tools tree was made from."""
    lines = (tools / "etc/apt/sources.list").read_text().splitlines()
    return tuple(line for line in lines if line.startswith("deb "))


def in_tree(root: Path, argv: Sequence[str | Path], *, binds: Sequence[Path] = ()) -> list[str]:
    """The argv that runs ``argv`` inside ``root`` with /proc, /dev and each of ``binds`` at its own path.

    Mounts live in a namespace of their own, so a crash leaves none behind.
    """
    return [
        "unshare", "--mount", "--propagation", "private", str(TOP / "scripts/in_tree"),
        str(root), *(str(path) for path in binds), "--", *(str(word) for word in argv),
    ]


def refresh_package_lists(root: Path) -> None:
    """Fetch the package lists of the tools tree anew, so that kernel and image agree on versions."""
    log = Path(tempfile.mkstemp(prefix="stasis-apt-", suffix=".log")[1])
    try:
        run(in_tree(root, ["apt-get", "update", "-q"]), log=log, what="apt-get update")
    except BuildError as error:
        raise BuildError(
            f"the package lists could not be fetched: check the network, or set STASIS_MIRROR.\n{error}") from error
    finally:
        log.unlink(missing_ok=True)


def candidate_version(root: Path, package: str) -> str:
    """The version of ``package`` that apt would install now."""
    text = output_of(in_tree(root, ["apt-cache", "show", "--no-all-versions", package]))
    for line in text.splitlines():
        if line.startswith("Version: "):
            return line.removeprefix("Version: ")
    raise BuildError(f"Debian {SUITE} offers no package {package}.")


def kernel_release(root: Path) -> str:
    """The release (``uname -r``) of the kernel that linux-image-amd64 stands for now."""
    text = output_of(in_tree(root, ["apt-cache", "show", "--no-all-versions", "linux-image-amd64"]))
    for line in text.splitlines():
        if line.startswith("Depends: linux-image-"):
            return line.removeprefix("Depends: linux-image-").split()[0]
    raise BuildError("linux-image-amd64 names no kernel package.")
