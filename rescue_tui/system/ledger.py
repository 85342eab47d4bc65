"""What a session remembers of disks: which were imaged, where destinations are mounted. Files in the workspace."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rescue_tui.core.errors import SetupError
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.imaging import DestinationSpace
from rescue_tui.core.placement import mount_name
from rescue_tui.core.record import rfc3339
from rescue_tui.system.durable import read_or_none, replace_file
from rescue_tui.system.workspace import Workspace


@dataclass(frozen=True, slots=True)
class MountedDestination:
    """A destination that we mounted, or were about to: the record comes before the mount.

    ``generation`` is the diskseq of the attachment; ``space`` is what the test write found, None before it.
    """

    device_id: DeviceId
    generation: int
    serial: str
    node: str
    mount_point: str
    filesystem: str
    space: DestinationSpace | None = None


class Ledger:
    """Shared by every process of the session; each change is one rename under a lock."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._sources = workspace.root / "sources.json"

    def sources(self) -> frozenset[DeviceId]:
        """Identities that were ever imaged in this session."""
        return frozenset(self._load_sources())

    def add_source(self, device_id: DeviceId) -> None:
        """Remember a source; it can't become a destination any more."""
        with self._locked():
            known = self._load_sources()
            if device_id not in known:
                known[device_id] = rfc3339(datetime.now(UTC))
                _write(self._sources, {
                    "schema": "stasis.sources/1", "sources": {str(key): value for key, value in known.items()}})

    def _load_sources(self) -> dict[DeviceId, str]:
        try:
            content = read_or_none(self._sources)
            if content is None:
                return {}
            return {DeviceId.parse(str(key)): str(value) for key, value in json.loads(content)["sources"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            # Forgetting sources would open them for a grant: stop instead.
            raise SetupError(f"{self._sources} is damaged, so the sources of this session are unknown.",
                             "Restart the machine to begin a new session.") from error

    def destinations(self) -> tuple[MountedDestination, ...]:
        """Every destination that has a record; half-written or foreign files are passed over."""
        found = []
        for path in sorted(self._workspace.destination_records_dir.glob("*.json")):
            with suppress(ValueError, KeyError, TypeError, OSError):
                found.append(_destination(json.loads(path.read_bytes())))
        return tuple(found)

    def destination(self, device_id: DeviceId) -> MountedDestination | None:
        """The record of one destination."""
        return next((record for record in self.destinations() if record.device_id == device_id), None)

    def put(self, record: MountedDestination) -> None:
        """Write or replace a record."""
        self._workspace.ensure(self._workspace.destination_records_dir.name)
        space = record.space
        _write(self._path(record.device_id), {
            "device_id": str(record.device_id), "generation": record.generation, "serial": record.serial,
            "node": record.node, "mount_point": record.mount_point, "filesystem": record.filesystem,
            "space": None if space is None else {
                "mount_point": space.mount_point, "filesystem": space.filesystem, "free_bytes": space.free_bytes,
                "sparse": space.sparse, "preallocate": space.preallocate, "direct_io": space.direct_io,
                "max_file_bytes": space.max_file_bytes}})

    def mount_point(self, device_id: DeviceId, serial: str) -> str:
        """Where a destination is, or shall be, mounted: a short name made of its serial, made when missing.

        A second disk whose serial gives the same name gets a name of its own.
        """
        known = self.destination(device_id)
        if known is not None:
            name = os.path.basename(known.mount_point)
        else:
            taken = {os.path.basename(record.mount_point) for record in self.destinations()}
            name = mount_name(serial, device_id, frozenset(taken))
        return os.path.realpath(self._workspace.ensure(self._workspace.destination_dir.name, name))

    def drop(self, device_id: DeviceId) -> None:
        """Forget a record and remove its mount point, when that is empty and not mounted."""
        record = self.destination(device_id)
        self._path(device_id).unlink(missing_ok=True)
        if record is not None:
            with suppress(OSError):
                os.rmdir(record.mount_point)

    def _path(self, device_id: DeviceId) -> Path:
        return self._workspace.destination_records_dir / f"{device_id.slug()}.json"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._workspace.ensure() / "ledger.lock"
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _destination(value: dict[str, object]) -> MountedDestination:
    space = value["space"]
    return MountedDestination(
        DeviceId.parse(str(value["device_id"])), int(str(value["generation"])), str(value["serial"]),
        str(value["node"]), str(value["mount_point"]), str(value["filesystem"]),
        DestinationSpace(**space) if isinstance(space, dict) else None)


def _write(path: Path, value: object) -> None:
    text = json.dumps(value, indent=1).encode()
    try:
        replace_file(path, text, sync=False, mode=0o600)
    except OSError as error:
        raise SetupError(f"{path} can't be written: {error.strerror}.", "Is /run full? Free some memory.") from error
