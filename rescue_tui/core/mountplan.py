"""How each file system is mounted: THE table for read-only views, and the one for destinations. Pure.

Sources: ext4(5), xfs(5), btrfs(5), the kernel's Documentation/filesystems. Every read-only line was chosen so that a
dirty journal or log is neither replayed nor cleared; under each lies a read-only loop device besides.
"""

from __future__ import annotations

from dataclasses import dataclass

from rescue_tui.core.errors import PolicyRefusal
from rescue_tui.core.text import printable

_HARDENED = ("nodev", "nosuid", "noexec")


@dataclass(frozen=True, slots=True)
class MountPlan:
    """The type for ``mount -t``, every option for ``-o``, and what a reader of the mount should know."""

    filesystem: str
    options: tuple[str, ...]
    note: str = ""


_LOG_NOTE = "The log is not replayed: files written last may be missing or old."
_READ_ONLY: dict[str, tuple[str, tuple[str, ...], str]] = {
    # blkid's name: kernel's name, options beside ro, note. nouuid: the source with the same UUID may be visible too.
    "xfs": ("xfs", ("norecovery", "nouuid"), _LOG_NOTE),
    # ext2 has no journal, and its driver refuses noload.
    "ext2": ("ext2", (), ""),
    "ext3": ("ext3", ("noload",), _LOG_NOTE),
    "ext4": ("ext4", ("noload",), _LOG_NOTE),
    "btrfs": ("btrfs", ("rescue=nologreplay",), _LOG_NOTE),
    "exfat": ("exfat", (), ""),
    "vfat": ("vfat", (), ""),
    "ntfs": ("ntfs3", (), ""),
}
_WRITABLE: dict[str, tuple[str, int | None]] = {
    # blkid's name: kernel's name, largest file in bytes (ext2/3/4 with 4 KiB blocks; None: beyond any disk).
    "ext2": ("ext2", 2 << 40),
    "ext3": ("ext3", 2 << 40),
    "ext4": ("ext4", (16 << 40) - 4096),
    "xfs": ("xfs", None),
    "btrfs": ("btrfs", None),
    "exfat": ("exfat", None),
    "vfat": ("vfat", (4 << 30) - 1),
    "ntfs": ("ntfs3", None),
}
READABLE = frozenset(_READ_ONLY)
WRITABLE = frozenset(_WRITABLE)


def read_only_plan(kind: str, asked: tuple[str, ...] = ()) -> MountPlan:
    """How to mount a file system of blkid's ``kind`` so that nothing is written to it.

    PolicyRefusal for a kind that is not in the table, an unknown one, and for any option in ``asked`` that is not
    ``ro``: no option can make a read-only mount safer, and most make it less safe.
    """
    extra = [option for option in asked if option != "ro"]
    if extra:
        raise PolicyRefusal(f"Mounting with {printable(','.join(extra))} is not possible: every mount is read-only.",
                            "Leave the options out; Stasis picks the ones that are safe for the file system.")
    if not kind:
        raise PolicyRefusal("No file system was recognised there.",
                            "`stasis devices` shows every signature that was found.")
    if kind not in _READ_ONLY:
        raise PolicyRefusal(f"Stasis does not mount {printable(kind)}: it can't prove that nothing would be written.",
                            f"It mounts {', '.join(sorted(_READ_ONLY))}; examine an image of it elsewhere.")
    name, options, note = _READ_ONLY[kind]
    return MountPlan(name, ("ro", *_HARDENED, *options), note)


def destination_plan(kind: str) -> MountPlan:
    """How a granted destination is mounted for writing; PolicyRefusal for a kind that is not in the table."""
    if kind not in _WRITABLE:
        raise PolicyRefusal(f"A destination with {printable(kind) or 'an unknown file system'} can't be used.",
                            f"Use one with {', '.join(sorted(_WRITABLE))}, or a blank disk that Stasis formats.")
    return MountPlan(_WRITABLE[kind][0], ("rw", *_HARDENED, "noatime"))


def max_file_bytes(kind: str) -> int | None:
    """The largest file that a file system of blkid's ``kind`` can hold, in bytes; None when no limit matters."""
    return _WRITABLE[kind][1] if kind in _WRITABLE else None
