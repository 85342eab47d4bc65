"""The attack kit: a Debian root with every tool that is known to write to disks, for the tests of the write guard.

It is no part of the image. It is made once, kept in the cache, packed as an erofs image, and attached to a test's
machine as a disk that the tests enter by chroot; beside it lies a tar with the programs of our own, compiled in the
kit's root (nothing of the host's compiler gets in) and linked statically.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.host import BuildError, cache_dir, require_tools, run, step
from builder.toolstree import OWN_SOURCES, SUITE, bootstrap, in_tree

PACKAGES = (
    "mdadm", "lvm2", "dmsetup", "cryptsetup-bin", "bcache-tools", "zfsutils-linux",
    "sg3-utils", "hdparm", "sdparm", "nvme-cli", "gdisk", "fdisk", "util-linux", "mount", "kmod",
    "e2fsprogs", "xfsprogs", "btrfs-progs", "f2fs-tools", "dosfstools", "exfatprogs",
    "fio", "python3", "tar", "zstd",
)
# To make the kit with, and left out of what is packed.
MAKERS = ("gcc", "libc6-dev", "erofs-utils")
# Patterns of mkfs.erofs, from the top of the tree without a leading slash.
LEFT_OUT = (
    r"^usr/(include|libexec/gcc|lib/gcc|share/(doc|man|locale|info|lintian|perl|zoneinfo))(/|$)",
    r"^usr/lib/x86_64-linux-gnu/(lib[atlhu]+san\.|libgprofng|libicudata|libisl|libbfd|perl/|.*\.a$)",
    r"^usr/bin/(x86_64-linux-gnu-|perl)", r"^var/(cache|log|lib/apt)(/|$)", r"^boot(/|$)",
)
# The machine that is tested brings its own modules, and these are where its file systems are seen.
MOUNT_POINTS = ("dev", "proc", "sys", "run", "tmp", "usr/lib/modules", "mnt")
PROGRAMS = ("act", "fuzz", "race")
SECTOR_BYTES = 512
CFLAGS = ("-static", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread")


@dataclass(frozen=True, slots=True)
class Kit:
    """``image`` is the erofs with the tools; ``programs`` holds our own, by name."""

    image: Path
    programs: Mapping[str, Path]


def digest_of(*parts: object) -> str:
    """A short name for what a cached thing was made of."""
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


def ensure_kit(sources: Path) -> Kit:
    """The kit with the programs whose C sources lie in ``sources``; made now (a minute) when the cache has none.

    Raises :class:`BuildError` when the packages can't be fetched or a program does not compile.
    """
    root = _root()
    image = root.with_suffix(".erofs")
    if not image.exists():
        step("packing the attack kit")
        _pack(root, image)
    texts = {path.name: path.read_bytes() for path in sorted(sources.glob("*.[ch]"))}
    programs = cache_dir() / f"kit-programs-{digest_of(CFLAGS, {name: text.hex() for name, text in texts.items()})}"
    if not programs.exists():
        step("compiling the attack programs")
        _compile(root, texts, programs)
    return Kit(image, {name: programs / name for name in PROGRAMS})


def _root() -> Path:
    root = cache_dir() / f"kit-{SUITE}-{digest_of(PACKAGES, MAKERS, LEFT_OUT, OWN_SOURCES)}"
    if (root / ".complete").exists():
        return root
    require_tools("mmdebstrap")
    step("making the attack kit (about a minute)")
    for stale in cache_dir().glob("kit-*"):
        if stale.is_dir():
            shutil.rmtree(stale)
        else:
            stale.unlink()
    log = cache_dir() / "kit.log"
    log.unlink(missing_ok=True)
    try:
        run(bootstrap(root, PACKAGES + MAKERS, OWN_SOURCES), log=log, what="mmdebstrap (attack kit)")
    except BuildError as error:
        raise BuildError(
            "the Debian packages of the attack kit could not be fetched. Check the network or set STASIS_MIRROR to a "
            f"mirror that this machine reaches.\n{error}") from error
    for point in MOUNT_POINTS:
        (root / point).mkdir(parents=True, exist_ok=True)
    (root / ".complete").touch()
    return root


def _pack(root: Path, image: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kit-", dir=cache_dir()) as scratch:
        fresh = Path(scratch) / "kit.erofs"
        excluded = [f"--exclude-regex={pattern}" for pattern in LEFT_OUT]
        # The tree is packed by its own mkfs.erofs, from a bind mount of the cache, in which nothing is mounted on it.
        run(in_tree(root, ["mkfs.erofs", "-zlz4", "--quiet", *excluded, fresh, root], binds=(cache_dir(),)),
            log=cache_dir() / "kit.log", what="mkfs.erofs (attack kit)")
        fresh.rename(image)


def _compile(root: Path, texts: Mapping[str, bytes], target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kit-", dir=cache_dir()) as scratch:
        work, made = Path(scratch), Path(scratch) / "programs"
        made.mkdir()
        for name, text in texts.items():
            (work / name).write_bytes(text)
        for name in PROGRAMS:
            run(in_tree(root, ["gcc", *CFLAGS, "-o", made / name, work / f"{name}.c"], binds=(cache_dir(),)),
                what=f"compiling {name}.c")
        made.rename(target)


def bundle(path: Path, files: Mapping[str, bytes], programs: Mapping[str, Path]) -> None:
    """Write a tar (padded to whole sectors, so that it can be attached as a disk) with files and programs."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in {**{name: program.read_bytes() for name, program in programs.items()}, **files}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755 if name in programs else 0o644
            archive.addfile(member, io.BytesIO(data))
    short = -path.stat().st_size % SECTOR_BYTES
    with path.open("ab") as file:
        file.write(bytes(short))

