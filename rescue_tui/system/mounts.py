"""Read-only mounts of images and devices, always through a read-only loop device of their own.

The loop driver fails every write by itself, whatever a file system's driver tries; the options of core.mountplan see to
it that nothing is tried. Once mounted, the loop is set to detach itself with the unmount, so nothing is left behind.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from rescue_tui.core.access import is_member
from rescue_tui.core.command import Command
from rescue_tui.core.errors import (
    CommandError,
    PolicyRefusal,
    RescueError,
    SetupError,
    UsageError,
)
from rescue_tui.core.mountplan import MountPlan, read_only_plan
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.core.text import decode, printable
from rescue_tui.system.destination import JournalSink, holders_of
from rescue_tui.system.durable import replace_file
from rescue_tui.system.mounttable import is_writable, mounted_at
from rescue_tui.system.patience import within
from rescue_tui.system.runner import Runner, failure
from rescue_tui.system.tools import losetup
from rescue_tui.system.tools import mount as mount_tool
from rescue_tui.system.tools.wipefs import read_signatures
from rescue_tui.system.workspace import Workspace

_PATIENCE_SECONDS = 10.0
_SECTOR_SIZES = (512, 1024, 2048, 4096)
# DOS types of an extended partition, which only holds others.
_EXTENDED = frozenset({"0x5", "0xf", "0x85"})
_TABLE_KINDS = frozenset({"gpt", "dos", "PMBR", "sun", "sgi", "bsd", "mac"})


@dataclass(frozen=True, slots=True)
class MountedImage:
    """A read-only mount of ours. ``target`` is the image or device, ``part`` its partition (None: no table)."""

    target: str
    at: str
    filesystem: str
    options: tuple[str, ...]
    loop: str
    part: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class _View:
    """The part of a target that is looked at; bytes, limit 0 means to the end."""

    target: str
    sector_bytes: int
    offset_bytes: int = 0
    limit_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Entry:
    number: int
    offset_bytes: int
    size_bytes: int
    type: str


class PartitionNeeded(UsageError):
    """There are several partitions and none was named: number, size in bytes and type of each."""

    def __init__(self, parts: tuple[tuple[int, int, str], ...]) -> None:
        listed = "\n".join(f"{number}: {size_bytes} bytes, type {kind}" for number, size_bytes, kind in parts)
        super().__init__(f"It has {len(parts)} partitions.", "Say which one with --part N.", listed)
        self.parts = parts


class Mounts:
    """Mounts and unmounts; a record file each, so that every process of the session sees them."""

    def __init__(self, runner: Runner, journal: JournalSink, workspace: Workspace) -> None:
        self._runner = runner
        self._journal = journal
        self._workspace = workspace

    # mount -----------------------------------------------------------------------------------------------------------
    async def mount(self, snapshot: Snapshot, target: str, at: Path, part: int | None = None) -> MountedImage:
        """Mount an image file, or a device, read-only at a directory (made when missing).

        UsageError for a target or directory that won't do, or when a partition must be named; PolicyRefusal for what
        can't be mounted without a risk of writing; CommandError with the tool's own words when mounting fails.
        """
        await self.clean()
        with self._mounting(fcntl.LOCK_SH):
            return await self._mount_target(snapshot, target, at, part)

    async def _mount_target(self, snapshot: Snapshot, target: str, at: Path, part: int | None) -> MountedImage:
        view, part = await self._view(snapshot, target, part)
        point = await within(_PATIENCE_SECONDS, str(at), lambda: _mount_point(at))
        loop = await self._attach(view, point)
        try:
            if part is None:
                part = await self._only_partition(loop)
            if part is not None:
                entry = await self._entry(loop, part)
                await self._detach(loop)
                loop = ""  # the number may be somebody else's from now on
                view = _View(view.target, view.sector_bytes, entry.offset_bytes, entry.size_bytes)
                loop = await self._attach(view, point)
            plan = read_only_plan(await self._filesystem(loop))
            return await self._mount(view, loop, plan, point, part)
        except BaseException:
            # Cancelled or failed: nothing may stay behind. What is mounted by now keeps its loop and its record.
            if mounted_at(point) is None:
                if loop:
                    await self._detach(loop)
                self._record_path(point).unlink(missing_ok=True)
            raise

    async def _mount(
        self, view: _View, loop: str, plan: MountPlan, point: str, part: int | None,
    ) -> MountedImage:
        image = MountedImage(view.target, point, plan.filesystem, plan.options, loop, part, plan.note)
        command = mount_tool.mount(plan, loop, point)
        self._journal.append("mount.mounting", target=view.target, at=point, part=part, loop=loop, command=command.line)
        self._record(image)
        done = await self._runner.attempt(command)
        if not done.ok:
            if b"unknown filesystem type" in done.stderr:
                raise SetupError(f"This kernel has no driver for {plan.filesystem}.",
                                 "The Stasis image has it; so has any recent distribution.", command.line)
            raise failure(done)
        entry = mounted_at(point)
        if entry is None or is_writable(entry) or entry.source != loop:
            # Several copies of one btrfs can make the kernel take another device than the one that was named.
            await self._runner.attempt(mount_tool.unmount(point))
            raise PolicyRefusal(f"The kernel mounted something else than {loop} at {point}; it was unmounted again.",
                                "Unplug other disks with a copy of this file system, then try again.",
                                f"{entry.source} {','.join(entry.options)}" if entry else "nothing is mounted")
        # From here on the loop goes with the unmount, whoever does that.
        await self._runner.attempt(losetup.detach(loop))
        self._journal.append("mount.mounted", target=view.target, at=point, part=part, filesystem=plan.filesystem,
                             options=list(plan.options))
        return image

    async def _view(self, snapshot: Snapshot, target: str, part: int | None) -> tuple[_View, int | None]:
        def look() -> tuple[str, int] | None:
            try:
                path = os.path.realpath(target)
                return path, os.stat(path).st_mode
            except (FileNotFoundError, NotADirectoryError):
                return None

        try:
            seen = await within(_PATIENCE_SECONDS, target, look)
        except OSError as error:
            raise UsageError(f"{printable(target)} can't be looked at: {error.strerror}.", "Check the path.") from error
        if seen is not None and stat.S_ISREG(seen[1]):
            return _View(seen[0], await within(_PATIENCE_SECONDS, target, lambda: _sector_bytes(seen[0]))), part
        if seen is not None and not stat.S_ISBLK(seen[1]):
            raise UsageError(f"{printable(target)} is neither an image file nor a device.", "Name one of those.")
        disk, partition = snapshot.find_any(target)
        place = disk if partition is None else partition
        used = [mount.target for mount in place.mounts]
        if any(mount.writable for mount in place.mounts):
            raise PolicyRefusal(f"{place.node} is mounted for writing at {printable(', '.join(used))}.",
                                "Look at it there; a second view of it would be inconsistent.")
        if partition is not None and part not in (None, partition.number):
            raise UsageError(f"{place.node} is a partition itself.", "Leave --part out.")
        return (_View(disk.node, disk.logical_sector_bytes),
                partition.number if partition is not None else part)

    # looking ---------------------------------------------------------------------------------------------------------
    async def _attach(self, view: _View, point: str) -> str:
        """A new loop over the view, and at once a record of it, so that `clean` finds it after a crash."""
        done = await self._runner.run(losetup.attach(
            view.target, sector_bytes=view.sector_bytes, offset_bytes=view.offset_bytes, limit_bytes=view.limit_bytes))
        loop = decode(done.stdout).strip()
        if not loop.startswith("/dev/loop"):
            raise CommandError("losetup named no loop device.", "Look at the kernel log.", printable(loop))
        self._record(MountedImage(view.target, point, "", (), loop))
        return loop

    async def _detach(self, loop: str) -> None:
        await self._runner.attempt(losetup.detach(loop))

    async def _filesystem(self, loop: str) -> str:
        """The one file system on a loop in blkid's words; PolicyRefusal for several, or for a part of something."""
        signatures = await read_signatures(self._runner, loop)
        kinds = sorted({sig.kind for sig in signatures})
        members = [sig.kind for sig in signatures if is_member(sig) or sig.kind in {"swap", "swsuspend"}]
        if members:
            raise PolicyRefusal(f"It holds {members[0]}, which is no file system by itself.",
                                "Mount what is on it on another machine, from a copy of the image.", ", ".join(kinds))
        # A boot sector of FAT, exFAT or NTFS ends as a DOS partition table does.
        found = [kind for kind in kinds if kind not in _TABLE_KINDS]
        if len(found) > 1:
            raise PolicyRefusal(f"It shows several file systems at one place: {', '.join(found)}.",
                                "Stasis does not guess which one is the right one.")
        return found[0] if found else ""

    async def _only_partition(self, loop: str) -> int | None:
        """The partition to take when none was named; None when there is no table. UsageError when there are several."""
        signatures = await read_signatures(self._runner, loop)
        kinds = {sig.kind for sig in signatures}
        if not kinds & _TABLE_KINDS or kinds & {"vfat", "exfat", "ntfs"}:
            return None
        entries = await self._entries(loop)
        if len(entries) == 1:
            return entries[0].number
        if not entries:
            return None
        raise PartitionNeeded(tuple((entry.number, entry.size_bytes, entry.type) for entry in entries))

    async def _entry(self, loop: str, number: int) -> _Entry:
        entries = await self._entries(loop)
        for entry in entries:
            if entry.number == number:
                return entry
        have = ", ".join(str(entry.number) for entry in entries) or "none"
        raise UsageError(f"There is no partition {number}.", f"Partitions in the table: {have}.")

    async def _entries(self, loop: str) -> tuple[_Entry, ...]:
        """Partitions with their own numbers, from libblkid (partx(8)); start and size are in units of 512 bytes."""
        done = await self._runner.attempt(Command(
            ("partx", "--raw", "--noheadings", "--output", "NR,START,SECTORS,TYPE", loop)))
        if not done.ok and b"failed to read partition table" not in done.stderr:
            raise failure(done)
        found = []
        for line in decode(done.stdout).splitlines():
            words = line.split()
            if len(words) == 4 and all(word.isdecimal() for word in words[:3]) and words[3] not in _EXTENDED:
                found.append(_Entry(int(words[0]), int(words[1]) * 512, int(words[2]) * 512, printable(words[3])))
        return tuple(found)

    # unmount ---------------------------------------------------------------------------------------------------------
    async def unmount(self, at: Path) -> None:
        """Unmount what `mount` mounted; UsageError when that is not ours, PolicyRefusal while it is in use."""
        point = _normal(at)
        record = next((image for image in self._records() if image.at == point), None)
        if record is None:
            raise UsageError(f"Stasis mounted nothing at {printable(str(at))}.", "`mount` shows what is mounted where.")
        if mounted_at(point) is not None:
            self._journal.append("mount.unmounting", at=point, target=record.target)
            await self._runner.attempt(mount_tool.unmount(point))
            if mounted_at(point) is not None:
                raise PolicyRefusal(f"{point} is in use.", "Close every program and shell in it, then try again.",
                                    f"in use by: {', '.join(holders_of(point))}")
        await self._detach_own(record)
        self._record_path(point).unlink(missing_ok=True)
        self._journal.append("mount.unmounted", at=point, target=record.target)

    def mounted(self) -> tuple[MountedImage, ...]:
        """What is mounted now."""
        return tuple(image for image in self._records() if mounted_at(image.at) is not None)

    async def clean(self) -> tuple[MountedImage, ...]:
        """Detach the loops and remove the records that a crash left without a mount; what was cleaned.

        While another process mounts something, its record has no mount yet: then nothing is cleaned.
        """
        try:
            with self._mounting(fcntl.LOCK_EX | fcntl.LOCK_NB):
                left = tuple(image for image in self._records() if mounted_at(image.at) is None)
                for image in left:
                    await self._detach_own(image)
                    self._record_path(image.at).unlink(missing_ok=True)
                    self._journal.append("mount.cleaned", at=image.at, target=image.target, loop=image.loop)
                return left
        except BlockingIOError:
            return ()

    @contextmanager
    def _mounting(self, how: int) -> Iterator[None]:
        lock = self._workspace.ensure() / "mounts.lock"
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, how)
            yield
        finally:
            os.close(descriptor)

    async def _detach_own(self, image: MountedImage) -> None:
        """Detach the loop of a record if it still is ours: the number may have been given to somebody else."""
        done = await self._runner.run(losetup.list_all())
        for loop in losetup.parse_list(done.stdout):
            if loop.node == image.loop and loop.read_only and loop.backing_file == image.target:
                await self._detach(loop.node)

    # records ---------------------------------------------------------------------------------------------------------
    def _record_path(self, point: str) -> Path:
        key = hashlib.sha256(point.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        return self._workspace.mounts_dir / f"{key}.json"

    def _record(self, image: MountedImage) -> None:
        self._workspace.ensure("mounts")
        path = self._record_path(image.at)
        try:
            replace_file(path, json.dumps(asdict(image)).encode(), sync=False, mode=0o600)
        except OSError as error:
            raise SetupError(f"{path} can't be written: {error.strerror}.", "Is /run full?") from error

    def _records(self) -> tuple[MountedImage, ...]:
        found = []
        for path in sorted(self._workspace.mounts_dir.glob("*.json")):
            with suppress(ValueError, TypeError, KeyError, OSError):
                value = json.loads(path.read_bytes())
                found.append(MountedImage(**{**value, "options": tuple(value["options"])}))
        return tuple(found)


def _normal(at: Path) -> str:
    """The absolute path without touching ``at`` itself, which may hang: only its parent is resolved."""
    absolute = os.path.abspath(at)
    return os.path.join(os.path.realpath(os.path.dirname(absolute)), os.path.basename(absolute))


def _mount_point(at: Path) -> str:
    """An empty directory that nothing is mounted on, made when missing; UsageError otherwise."""
    point = _normal(at)
    try:
        if os.path.islink(point):
            raise UsageError(f"{printable(str(at))} is a symbolic link.", "Name an empty directory.")
        os.makedirs(point, mode=0o755, exist_ok=True)
        if mounted_at(point) is not None:
            raise UsageError(f"Something is mounted at {printable(str(at))} already.", "Name another directory.")
        if os.listdir(point):
            raise UsageError(f"{printable(str(at))} is not empty.", "Name an empty directory.")
    except RescueError:
        raise
    except OSError as error:
        raise UsageError(f"{printable(str(at))} can't be used: {error.strerror}.",
                         "Name an empty directory.") from error
    return point


def _sector_bytes(image: str) -> int:
    """The sector size of the source, from identity.json beside an image of a case; 512 when there is none."""
    try:
        value = json.loads((Path(image).parent / "identity.json").read_bytes())
        size = int(value.get("logical_sector_bytes") or value["disk"]["logical_sector_bytes"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 512
    return size if size in _SECTOR_SIZES else 512
