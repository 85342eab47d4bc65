"""The case folder: what lies where, what a mapfile is bound to, the manifest. The layout is in docs/DESIGN.md."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rescue_tui import __version__
from rescue_tui.core.device import Disk
from rescue_tui.core.errors import DeviceError, FormatError, PolicyRefusal, RescueError
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.imaging import Binding
from rescue_tui.core.job import JobRecord
from rescue_tui.core.mapfile import Mapfile, parse_either
from rescue_tui.core.record import rfc3339, to_plain
from rescue_tui.core.restore import restore
from rescue_tui.core.text import printable
from rescue_tui.system.durable import read_or_none, replace_file
from rescue_tui.system.journal import Journal

CASE_PREFIX = "stasis-case-"
COLLECTED_PREFIX = "stasis-collected-"
MANIFEST = "MANIFEST.sha256"
# Written after the manifest, or growing while a job runs; the journal seals itself.
UNLISTED = frozenset({MANIFEST, "report.json", "report.html", "journal.jsonl"})


def new_case_path(to: Path, now: datetime) -> Path:
    """Where the case folder of a call made at ``now`` goes."""
    return to / f"{CASE_PREFIX}{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def images_in(cases: Iterable[Path], destinations: Iterable[Path]) -> tuple[Path, ...]:
    """Images, complete and partial, in case folders and in those below destinations; DeviceError when they can't be
    looked at. May hang on a dead file system.
    """
    found: dict[Path, None] = {}
    try:
        folders = [*cases, *(case for place in destinations for case in sorted(place.glob(f"{CASE_PREFIX}*")))]
        for case in folders:
            for name in ("image.raw", "image.partial.raw"):
                found.update(dict.fromkeys(sorted(case.glob(f"*/{name}"))))
    except OSError as error:
        raise DeviceError(f"Case folders can't be read: {error.strerror}.", "Look at the destination.") from error
    return tuple(found)


def to_json(value: object) -> bytes:
    """A value as JSON that people can read."""
    return json.dumps(to_plain(value), indent=2, ensure_ascii=False).encode("utf-8") + b"\n"


def read_json(path: Path) -> object:
    """The content of a JSON file of ours; FormatError when it is missing or damaged."""
    content = read_or_none(path)
    if content is None:
        raise FormatError(f"{printable(path.name)} is missing.", f"It belongs to {printable(str(path.parent))}.")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{printable(str(path))} is no JSON file.", "It was damaged.", str(error)) from error


@dataclass(frozen=True, slots=True)
class SourceFolder:
    """``<case>/<slug>``: everything about one source."""

    path: Path

    @property
    def case(self) -> CaseFolder:
        """The case folder that this one is in."""
        return CaseFolder(self.path.parent)

    @property
    def image(self) -> Path:
        """The image, once every sector was tried."""
        return self.path / "image.raw"

    @property
    def partial_image(self) -> Path:
        """The image until then."""
        return self.path / "image.partial.raw"

    @property
    def mapfile(self) -> Path:
        """ddrescue's mapfile; ddrescue keeps a copy in ``image.map.bak``."""
        return self.path / "image.map"

    def file(self, name: str) -> Path:
        """Another file of this source."""
        return self.path / name

    def binding(self) -> Binding:
        """What the mapfile belongs to; FormatError when that isn't noted."""
        return restore(Binding, read_json(self.file("binding.json")))

    def has_no_map(self) -> bool:
        """True when no mapfile ever reached the disk: it and its backup are missing or empty."""
        return not read_or_none(self.mapfile) and not read_or_none(self.path / "image.map.bak")

    def read_map(self) -> tuple[Mapfile, bool]:
        """The mapfile, or its backup (True). FormatError when there is none that can be read."""
        return parse_either(read_or_none(self.mapfile), read_or_none(self.path / "image.map.bak"))

    def record(self) -> JobRecord:
        """The job as it was last noted here."""
        return restore(JobRecord, read_json(self.file("job.json")))

    def check_belongs(self, disk: Disk) -> None:
        """PolicyRefusal when the mapfile here belongs to another disk, or the disk has changed."""
        difference = self.binding().difference(disk)
        if difference:
            raise PolicyRefusal(
                f"The mapfile in {printable(self.path.name)} is not for this disk: {difference}.",
                "Plug in the disk that the image was begun from, or start a new image without --resume.")

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Make the folder and keep every other worker out of it; PolicyRefusal when one is at work there."""
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise PolicyRefusal(f"Another job is writing to {printable(str(self.path))}.",
                                "`stasis jobs list` shows it; pause or cancel it first.") from error
        finally:
            os.close(handle)

    def write(self, name: str, content: bytes) -> Path:
        """Write a file of this source, surviving a power cut."""
        path = self.file(name)
        replace_file(path, content)
        return path


@dataclass(frozen=True, slots=True)
class CaseFolder:
    """One case: several sources, one journal, one manifest, one report."""

    path: Path

    @property
    def journal(self) -> Journal:
        """The case's own journal."""
        return Journal(self.path / "journal.jsonl")

    def source(self, device_id: DeviceId) -> SourceFolder:
        """The folder of one source; it may not exist yet."""
        return SourceFolder(self.path / device_id.slug())

    def sources(self) -> tuple[SourceFolder, ...]:
        """The folders of all sources, by name."""
        if not self.path.is_dir():
            return ()
        return tuple(SourceFolder(entry) for entry in sorted(self.path.iterdir()) if (entry / "binding.json").is_file())

    def collected(self) -> tuple[Path, ...]:
        """What `stasis collect` left in this case: folders with a manifest of their own."""
        return tuple(sorted(path.parent for path in self.path.glob(f"{COLLECTED_PREFIX}*/{MANIFEST}")))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other jobs of the same case from changing the shared files meanwhile."""
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def note_source(self, disk: Disk) -> None:
        """Make the folder, and list the source in case.json."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.locked():
            path = self.path / "case.json"
            known = read_json(path) if path.exists() else None
            case: dict[str, object] = known if isinstance(known, dict) else {
                "schema": "stasis.case/1", "stasis": __version__, "created": rfc3339(datetime.now(UTC)),
                "host": printable(platform.node()), "sources": []}
            listed = case.get("sources")
            sources = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
            if all(item.get("identity") != str(disk.id) for item in sources):
                sources.append({"identity": str(disk.id), "folder": disk.id.slug(), "model": disk.model,
                                "serial": disk.serial, "size_bytes": disk.size_bytes})
            replace_file(path, to_json({**case, "sources": sources}))

    def manifest(self) -> dict[str, str]:
        """Hash by path relative to the case; FormatError for a line that is none."""
        return parse_manifest(read_or_none(self.path / MANIFEST) or b"")

    def seal(self, folder: Path, known_hashes: Mapping[str, str]) -> None:
        """List the files below ``folder`` (and the case's own) in the manifest; entries of other folders stay.

        ``known_hashes`` spares a second read of the image: hash by relative path.
        """
        with self.locked():
            prefix = f"{folder.relative_to(self.path).as_posix()}/"
            entries = {name: digest for name, digest in self.manifest().items() if not name.startswith(prefix)}
            for path in (*files_below(folder), *(item for item in self.path.iterdir() if item.is_file())):
                name = path.relative_to(self.path).as_posix()
                if name not in UNLISTED and not path.name.startswith("."):
                    entries[name] = known_hashes.get(name) or small_hash(path)
            replace_file(self.path / MANIFEST, format_manifest(entries))


def files_below(folder: Path) -> tuple[Path, ...]:
    """Every file below a folder, links not followed, hidden ones (half-written) left out."""
    return tuple(sorted(path for path in folder.rglob("*")
                        if path.is_file() and not path.is_symlink() and not path.name.startswith(".")))


def small_hash(path: Path) -> str:
    """SHA-256 of a file that is small, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def format_manifest(entries: Mapping[str, str]) -> bytes:
    """The manifest as ``sha256sum --check`` reads it."""
    lines: list[str] = []
    for name, digest in sorted(entries.items()):
        escaped = name.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"{'' if escaped == name else chr(92)}{digest}  {escaped}\n")
    return "".join(lines).encode("utf-8", "surrogateescape")


def parse_manifest(content: bytes) -> dict[str, str]:
    """The inverse of `format_manifest`. FormatError names the first line that is wrong, or leads out of the case."""
    entries: dict[str, str] = {}
    for number, line in enumerate(content.decode("utf-8", "surrogateescape").split("\n"), start=1):
        if not line or line.startswith("#"):  # a remark, as `checkpoints extract` makes them
            continue
        escaped = line.startswith("\\")
        plain = line.removeprefix("\\")
        digest, separator, name = plain[:64], plain[64:66], plain[66:]
        if escaped:
            name = name.replace("\\n", "\n").replace("\\\\", "\\")
        bad_digest = len(digest) != 64 or any(char not in "0123456789abcdef" for char in digest)
        if bad_digest or separator not in ("  ", " *") or not name or name.startswith("/") or ".." in name.split("/"):
            raise FormatError(
                f"Line {number} of {MANIFEST} is not in the format of sha256sum.", "The manifest was damaged.")
        entries[name] = digest
    return entries


def allocated_bytes(folder: SourceFolder) -> int:
    """The space that a begun image already takes."""
    for path in (folder.partial_image, folder.image):
        if path.exists():
            return os.stat(path).st_blocks * 512
    return 0


def case_folders(root: Path) -> tuple[CaseFolder, ...]:
    """The cases at ``root``: itself when it is one, else those in it; oldest first."""
    if (root / "case.json").is_file():
        return (CaseFolder(root),)
    if not root.is_dir():
        return ()
    return tuple(CaseFolder(entry) for entry in sorted(root.iterdir())
                 if entry.name.startswith(CASE_PREFIX) and entry.is_dir())


def locate_begun(root: Path, disk: Disk) -> SourceFolder:
    """The newest begun image of ``disk`` at ``root`` (a destination or a case).

    PolicyRefusal when there is none, or when the one found there belongs to another disk.
    """
    others: list[str] = []
    for case in reversed(case_folders(root)):
        folder = case.source(disk.id)
        if folder.file("binding.json").is_file():
            folder.check_belongs(disk)
            return folder
        others += [_bound_to(other) for other in case.sources()]
    if others:
        raise PolicyRefusal(
            f"No image of {disk.id} was begun in {printable(str(root))}; what is there belongs to {', '.join(others)}.",
            "Plug in that disk, or start a new image without --resume.")
    raise PolicyRefusal(f"No image of {disk.id} was begun in {printable(str(root))}.",
                        "Name the destination or the case folder that it is in, or start without --resume.")


def _bound_to(folder: SourceFolder) -> str:
    try:
        return str(folder.binding().source)
    except RescueError:
        return f"an unknown disk ({printable(folder.path.name)})"
