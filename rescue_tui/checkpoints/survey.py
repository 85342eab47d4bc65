"""Which files and directories of a tree are saves: a walk by names that opens as little as it can.

Most files of a tree are no checkpoints, and opening every one costs ten times as much as listing them. So a name that
belongs to another program is passed over; a name that promises a checkpoint is always judged; of names that say little
the first `PROBES` of each ending are opened, and where none of these was a checkpoint only files of `LARGE_BYTES` are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from rescue_tui.checkpoints.layouts.hf_cache import is_snapshot, linked_blobs
from rescue_tui.checkpoints.names import Promise, means_model, promises
from rescue_tui.checkpoints.source import EndOfBytes, UnreadableBytes
from rescue_tui.checkpoints.tree import Kind, Tree, child

PROBES = 256
PROBE_BYTES = 512
LARGE_BYTES = 1 << 20
MAX_DEPTH = 256
# Never a save, and often large: version control, packages, caches of compilers.
_PASSED_OVER = frozenset({".git", "node_modules", "__pycache__", "site-packages", ".svn", ".hg", "lost+found"})
_ZIP, _TAR_AT = b"PK\x03\x04", 257
_BEGINNINGS = (_ZIP, b"GGUF", b"\x93NUMPY", b"\x89HDF\r\n\x1a\n", b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46")


class NamedTree(Protocol):
    """A tree that can list names by kind without looking at each, and sizes of some."""

    def names(self, path: str) -> Names: ...

    def sizes(self, directory: str, names: Sequence[str]) -> list[int]: ...


class Names(Protocol):
    """What a directory holds, by name and kind alone."""

    @property
    def directories(self) -> tuple[str, ...]: ...

    @property
    def files(self) -> tuple[str, ...]: ...

    @property
    def links(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Folder:
    """One directory as layouts see it. ``candidates`` are the files whose names don't belong to other programs.

    ``text`` holds them all, a line each: one look for a word in it spares layouts a look at each name.
    """

    path: str
    directories: tuple[str, ...]
    files: frozenset[str]
    candidates: tuple[str, ...]
    links: tuple[str, ...] = ()
    text: str = ""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def at(self, name: str) -> str:
        """The path of a name in it."""
        return child(self.path, name)


@dataclass(frozen=True, slots=True)
class Unit:
    """What is judged as one: a lone file, files of one directory, or (``whole``) all of it.

    ``path`` names the row, ``parts`` are paths of the files where it isn't the whole directory.
    """

    layout: str
    path: str
    directory: str
    parts: tuple[str, ...] = ()
    whole: bool = False


FILE = "file"
Claims = Callable[[Tree, Folder], Sequence[Unit]]


@dataclass(slots=True)
class Tally:
    """What a walk saw: regular files, and names of places and files that it could not or did not look at."""

    files: int = 0
    unopened: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    probes: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)


def survey(tree: Tree, start: str, claims: Sequence[Claims], tally: Tally) -> Iterator[Unit]:
    """Every save below a directory, in the order of paths; a claimed directory is not entered."""
    pending = [(start, 0)]
    while pending:
        path, depth = pending.pop()
        try:
            folder, plain = _folder(tree, path, tally)
        except UnreadableBytes as error:
            tally.unreadable.append((path, error.reason))
            continue
        try:
            units = _claimed(tree, folder, claims)
        except UnreadableBytes as error:
            tally.unreadable.append((path, error.reason))
            units = []
        yield from units
        if any(unit.whole for unit in units):
            continue
        taken = {part for unit in units for part in unit.parts}
        yield from _lone_files(tree, folder, plain, taken, tally)
        if depth < MAX_DEPTH:
            pending.extend((folder.at(name), depth + 1) for name in sorted(folder.directories, reverse=True)
                           if name not in _PASSED_OVER and folder.at(name) not in taken)


def _claimed(tree: Tree, folder: Folder, claims: Sequence[Claims]) -> list[Unit]:
    units: list[Unit] = []
    taken: set[str] = set()
    if not (folder.files or folder.directories):
        return units
    for claim in claims:
        for unit in claim(tree, folder):
            if unit.whole:
                return [unit]
            if not taken.intersection(unit.parts):
                taken.update(unit.parts)
                units.append(unit)
    return units


def _named(tree: Tree) -> NamedTree | None:
    """By the name: to ask a protocol takes longer than to list a small directory."""
    return cast("NamedTree", tree) if hasattr(tree, "names") else None


def _folder(tree: Tree, path: str, tally: Tally) -> tuple[Folder, list[tuple[str, Promise]]]:
    named = _named(tree)
    if named is not None:
        names = named.names(path)
        directories, files, links = names.directories, names.files, names.links
    else:
        entries = tree.listing(path)
        directories = tuple(entry.name for entry in entries if entry.kind is Kind.DIRECTORY)
        files = tuple(entry.name for entry in entries if entry.kind is Kind.FILE)
        links = tuple(entry.name for entry in entries if entry.kind is Kind.SYMLINK)
    if links and is_snapshot(path):
        files, links = files + links, ()
    linked = linked_blobs(tree, path)
    if linked:
        files = tuple(name for name in files if name not in linked)
    tally.files += len(files)
    plain = sorted(promises(files))
    return folder_of(path, directories, files, [name for name, _ in plain], links), plain


def folder_of(path: str, directories: Sequence[str], files: Sequence[str], candidates: Sequence[str],
              links: Sequence[str] = ()) -> Folder:
    """A directory from its names."""
    return Folder(path, tuple(directories), frozenset(files), tuple(candidates), tuple(links), "\n".join(candidates))


def _lone_files(tree: Tree, folder: Folder, plain: Sequence[tuple[str, Promise]], taken: set[str],
                tally: Tally) -> Iterator[Unit]:
    doubtful: list[str] = []
    for name, what in plain:
        if taken and folder.at(name) in taken:
            continue
        if what is Promise.STRONG or (what is Promise.WEAK and means_model(name)):
            path = folder.at(name)
            yield Unit(FILE, path, folder.path, (path,))
        else:
            doubtful.append(name)
    for name in _worth_opening(tree, folder.path, doubtful, tally):
        path = folder.at(name)
        last = name.rpartition(".")[2] if "." in name else ""
        tally.probes[last] += 1
        if _looks_like_one(tree, path, tally):
            tally.hits[last] += 1
            yield Unit(FILE, path, folder.path, (path,))


def _worth_opening(tree: Tree, directory: str, names: Sequence[str], tally: Tally) -> Iterator[str]:
    """Those names of which too many were opened in vain are left for their size to decide."""
    late: list[str] = []
    for name in names:
        last = name.rpartition(".")[2] if "." in name else ""
        if tally.hits[last] or tally.probes[last] < PROBES:
            yield name
        else:
            late.append(name)
    if not late:
        return
    named = _named(tree)
    if named is not None:
        sizes = dict(zip(late, named.sizes(directory, late), strict=True))
    else:
        sizes = {entry.name: entry.size_bytes for entry in tree.listing(directory)}
    for name in late:
        if sizes.get(name, 0) >= LARGE_BYTES:
            yield name
        else:
            tally.unopened += 1


def _looks_like_one(tree: Tree, path: str, tally: Tally) -> bool:
    """A first look at a file whose name says little; the readers decide later."""
    try:
        with tree.open(path) as source:
            return worth_reading(source.read_at(0, min(PROBE_BYTES, source.size_bytes)))
    except UnreadableBytes as error:
        tally.unreadable.append((path, error.reason))
    except EndOfBytes:
        pass
    return False


def worth_reading(first: bytes) -> bool:
    """True when the first bytes may be those of a format that has a reader."""
    if first.startswith(_BEGINNINGS) or first[_TAR_AT : _TAR_AT + 5] == b"ustar":
        return True
    if len(first) >= 10 and first[8:9] == b"{" and 2 <= int.from_bytes(first[:8], "little") <= 100_000_000:
        return True  # safetensors: the header's length, then JSON
    # Flax: a msgpack map whose first key is a short text.
    return len(first) > 2 and (0x81 <= first[0] <= 0x8F or first[0] in {0xDE, 0xDF}) and any(
        0xA1 <= byte <= 0xBF or byte == 0xD9 for byte in first[1:6])
