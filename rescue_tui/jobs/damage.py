"""The damage map of what is scanned: the mapfile of the image behind a mount, and what of it lies in no file.

An image of a case has its mapfile beside it, so a mount of one needs no option. The kernel's own list of mounts and
loop devices says which image that is: also for mounts that Stasis did not make.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rescue_tui.checkpoints.model import CheckpointFinding
from rescue_tui.checkpoints.source import UnreadableBytes
from rescue_tui.core.damage import LostMap, PlaceUnknown, lost_map
from rescue_tui.core.errors import DeviceError, FormatError, UsageError
from rescue_tui.core.finding import Severity
from rescue_tui.core.mapfile import Mapfile, parse_either
from rescue_tui.core.ranges import Ranges, ranges_of
from rescue_tui.core.text import human_bytes, printable
from rescue_tui.core.tooltext.mountinfo import MountEntry
from rescue_tui.jobs.casefolder import SourceFolder
from rescue_tui.system.backing import Backing, backing_of
from rescue_tui.system.durable import read_or_none
from rescue_tui.system.extents import Medium, free_space
from rescue_tui.system.filetree import FileTree, Media
from rescue_tui.system.mounttable import mount_of, mount_table, mounted_at

MAX_FILES = 4_000_000
MAX_DEPTH = 256
ELSEWHERE, NO_MAP = "unread-elsewhere", "mapfile-unreadable"


@dataclass(frozen=True, slots=True)
class AskedMap:
    """A mapfile that the operator named, and where in its image the file system begins (None: find out)."""

    mapfile: Path
    offset_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class KnownMap:
    """A mapfile that was laid over a mount; ``whole`` is false where that shows only a part of its file system.

    ``offset_bytes`` and ``size_bytes`` place the file system in the image. ``in_files``, ``free`` and ``elsewhere`` are
    the lost bytes that lie in files, in space that the file system calls free, and in neither; None: not looked for.
    """

    mount: str
    dev: int
    mapfile: str
    image: str
    offset_bytes: int
    size_bytes: int
    filesystem: str
    lost: LostMap
    whole: bool = True
    in_files_bytes: int | None = None
    free_bytes: int | None = None
    elsewhere_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DamageMap:
    """All that is known of the mounts at and below a root."""

    maps: tuple[KnownMap, ...] = ()
    findings: tuple[CheckpointFinding, ...] = ()

    @property
    def media(self) -> Media:
        """By device number, for a `FileTree`; those of which everything was read are left out."""
        return {known.dev: Medium(known.filesystem, known.lost) for known in self.maps if known.lost}


def damage_map(root: Path, asked: AskedMap | None = None) -> DamageMap:
    """The maps of the file system that ``root`` lies on and of those that are mounted below it.

    ``asked`` is for the first of them, and raises UsageError, FormatError or DeviceError where it can't be used. A
    mapfile that lies beside an image and can't be read becomes a finding.
    """
    place = os.path.realpath(root)
    above = mount_of(place)
    maps: list[KnownMap] = []
    findings: list[CheckpointFinding] = []
    if asked is not None:
        maps.append(_asked(place, above, asked))
    for mount in ((above,) if above is not None else ()) + tuple(
            entry for entry in mount_table() if entry.target.startswith(f"{place.rstrip('/')}/")):
        if any(known.mount == mount.target for known in maps):
            continue
        backing = backing_of(mount)
        folder = _folder(backing)
        if backing is None or folder is None or backing.offset_bytes is None:
            continue
        try:
            mapfile, is_backup = folder.read_map()
        except (FormatError, OSError) as error:
            words = error.summary if isinstance(error, FormatError) else str(error.strerror)
            findings.append(CheckpointFinding(
                Severity.WARNING, NO_MAP, "What of this image was never read is not known, as its mapfile can't be "
                f"read: {words}", file=_seen_from(place, mount.target)))
            continue
        path = f"{folder.mapfile}{'.bak' if is_backup else ''}"
        known = _known(mount, backing, backing.offset_bytes, path, mapfile)
        if known is not None:
            maps.append(known)
    return DamageMap(tuple(maps), tuple(findings))


def _folder(backing: Backing | None) -> SourceFolder | None:
    """The folder of a case that the image lies in, when it has a mapfile."""
    if backing is None or not backing.image:
        return None
    folder = SourceFolder(Path(backing.image).parent)
    known = Path(backing.image).name in {folder.image.name, folder.partial_image.name}
    return folder if known and (folder.mapfile.exists() or folder.file("binding.json").exists()) else None


def _asked(place: str, mount: MountEntry | None, asked: AskedMap) -> KnownMap:
    try:
        content = read_or_none(asked.mapfile)
        if content is None:
            raise UsageError(f"{printable(str(asked.mapfile))} is not there.", "Name ddrescue's mapfile.")
        mapfile, _ = parse_either(content, None)
    except OSError as error:
        raise DeviceError(f"{printable(str(asked.mapfile))} can't be read: {error.strerror}.",
                          "Copy it to another disk, if it can be read there.") from error
    backing = None if mount is None else backing_of(mount)
    if mount is None or backing is None:
        raise UsageError(f"{printable(place)} lies on no file system of a block device, so no mapfile tells of it.",
                         "Mount the image with `stasis mount`, then name a directory in it.")
    offset = backing.offset_bytes if asked.offset_bytes is None else asked.offset_bytes
    if offset is None:
        raise UsageError(f"Where {printable(backing.node)} lies in the image can't be told.",
                         "Say with --map-offset at which byte of the image the file system begins.")
    if offset < mapfile.start_bytes or offset + backing.size_bytes > mapfile.end_bytes:
        raise UsageError(
            f"The mapfile tells of the bytes {mapfile.start_bytes} to {mapfile.end_bytes} of an image, the file system "
            f"lies at {offset} to {offset + backing.size_bytes}.",
            "It is of another image; or say with --map-offset at which byte of the image the file system begins.")
    known = _known(mount, backing, offset, str(asked.mapfile), mapfile)
    if known is None:
        raise UsageError(f"{printable(mount.target)} is hidden behind another mount.", "Unmount that one first.")
    return known


def _known(mount: MountEntry, backing: Backing, offset: int, path: str, mapfile: Mapfile) -> KnownMap | None:
    """None when another mount hides this one."""
    shown = mounted_at(mount.target)
    if shown is None or shown.dev != mount.dev:
        return None
    try:
        dev = os.stat(mount.target).st_dev
    except OSError:
        return None
    return KnownMap(mount.target, dev, path, backing.image, offset, backing.size_bytes, mount.filesystem,
                    lost_map(mapfile, offset, backing.size_bytes), mount.root == "/")


def _seen_from(place: str, target: str) -> str:
    """A mount point relative to the root; the root itself for one that is not below it."""
    return target.removeprefix(f"{place.rstrip('/')}/") if target.startswith(f"{place.rstrip('/')}/") else ""


# What lies in no file -------------------------------------------------------------------------------------------------
def with_elsewhere(damage: DamageMap, root: Path, on_file: Callable[[], None]) -> DamageMap:
    """The same with how much of what is lost lies outside of all files, and findings where that is not free space.

    Asks for the extents of every file of each file system; ``on_file`` is called before each and may raise.
    """
    maps: list[KnownMap] = []
    findings = list(damage.findings)
    place = os.path.realpath(root)
    for known in damage.maps:
        if not known.lost:
            maps.append(replace(known, in_files_bytes=0, free_bytes=0, elsewhere_bytes=0))
            continue
        try:
            held = _held(known, on_file)
        except (OSError, PlaceUnknown) as error:
            words = str(error.strerror) if isinstance(error, OSError) else error.reason
            maps.append(known)
            findings.append(CheckpointFinding(
                Severity.WARNING, ELSEWHERE, f"{_amount(known.lost.all)} of this file system were never read, and "
                f"which files they hit can't be told: {words}.", file=_seen_from(place, known.mount)))
            continue
        left = known.lost.all.without(held.files)
        free = left.without(left.without(held.free))
        left = left.without(free)
        maps.append(replace(known, in_files_bytes=known.lost.all.without(free).without(left).total_bytes,
                            free_bytes=free.total_bytes, elsewhere_bytes=left.total_bytes))
        if len(left):
            findings.append(_elsewhere(known, left, held, _seen_from(place, known.mount)))
    return DamageMap(tuple(maps), tuple(findings))


@dataclass(frozen=True, slots=True)
class _Held:
    files: Ranges
    free: Ranges
    unseen: int

    @property
    def told_free(self) -> bool:
        """Does the file system say what is free? Without any free byte it says so only when asked of all."""
        return len(self.free) > 0


def _elsewhere(known: KnownMap, left: Ranges, held: _Held, file: str) -> CheckpointFinding:
    bad = left.without(known.lost.unread)
    kinds = "on bad sectors" if bad == left else "partly on bad sectors" if len(bad) else "not read yet"
    tables = "directories or the file system's own tables"
    what = tables if held.told_free else f"free space, {tables}"
    if not known.whole:
        what = f"files outside of this mount, {what}"
    unseen = f" {held.unseen} files could not be asked where they lie." if held.unseen else ""
    at = left.starts[0] + known.offset_bytes
    return CheckpointFinding(
        Severity.WARNING, ELSEWHERE, f"{_amount(left)} that were never read ({kinds}) lie in no file, the first at "
        f"byte {at} of the image: in {what}. Files may be missing, or lie elsewhere than is said.{unseen}",
        None, file, at, left.ends[-1] - left.starts[0])


def _amount(lost: Ranges) -> str:
    places = "1 place" if len(lost) == 1 else f"{len(lost)} places"
    return f"{human_bytes(lost.total_bytes)} in {places}"


def _held(known: KnownMap, on_file: Callable[[], None]) -> _Held:
    """What of the lost bytes files hold (their extents cut to it), and what is free."""
    tree = FileTree(Path(known.mount), media={known.dev: Medium(known.filesystem, known.lost)})
    everything = known.lost.all
    held: list[tuple[int, int]] = []
    unseen = 0
    try:
        for path in _files(tree, known.dev):
            on_file()
            try:
                extents = tree.extents(path, known.dev)
            except (UnreadableBytes, PlaceUnknown) as error:
                if isinstance(error, PlaceUnknown) and error.checked:
                    raise
                unseen += 1
                continue
            for extent in extents:
                held.extend(everything.within(extent.medium_offset, extent.medium_offset + extent.length))
        with _directory(known.mount) as descriptor:
            return _Held(ranges_of(held), free_space(descriptor, known.dev), unseen)
    finally:
        tree.close()


@contextmanager
def _directory(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _files(tree: FileTree, dev: int) -> Iterator[str]:
    """Every regular file on the device, links not followed; directories that can't be read are left out."""
    pending: list[tuple[str, int]] = [("", 0)]
    count = 0
    while pending:
        directory, depth = pending.pop()
        try:
            names = tree.names(directory)
        except UnreadableBytes:
            continue
        prefix = f"{directory}/" if directory else ""
        for name in names.files:
            count += 1
            if count > MAX_FILES:
                raise PlaceUnknown(f"there are more than {MAX_FILES} files")
            yield prefix + name
        if depth < MAX_DEPTH:
            pending += [(prefix + name, depth + 1) for name in names.directories if _is_on(tree, prefix + name, dev)]


def _is_on(tree: FileTree, directory: str, dev: int) -> bool:
    try:
        return os.lstat(tree.root / directory).st_dev == dev
    except (OSError, ValueError):
        return False
