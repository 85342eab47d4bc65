"""Where Stasis keeps its state of record: in RAM below /run for this boot, in case folders for ever."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from rescue_tui.core.errors import SetupError

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Workspace:
    """The directories of one boot. ``root`` is /run/stasis in the image; STASIS_STATE moves it (tests, workstation)."""

    root: Path

    @classmethod
    def default(cls) -> Workspace:
        """``$STASIS_STATE``, else /run/stasis for root, else the user's runtime directory."""
        given = os.environ.get("STASIS_STATE")
        if given:
            return cls(Path(given))
        if os.geteuid() == 0:
            return cls(Path("/run/stasis"))
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        return cls(Path(runtime) / "stasis" if runtime else Path.home() / ".local/state/stasis")

    def ensure(self, *parts: str) -> Path:
        """The directory ``root/parts...``, made with mode 0700 when missing. SetupError when it can't be made."""
        path = self.root.joinpath(*parts)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(f"{path} can't be made: {error.strerror}.",
                             "Run as root, or set STASIS_STATE to a directory of yours.") from error
        return path

    @property
    def journal_path(self) -> Path:
        """The session's journal, hash chained."""
        return self.root / "journal.jsonl"

    @property
    def grants_dir(self) -> Path:
        """One file a grant, named ``<major>:<minor>.<diskseq>``; the udev rule looks here."""
        return self.root / "grants"

    @property
    def jobs_dir(self) -> Path:
        """One directory a job."""
        return self.root / "jobs"

    @property
    def mounts_dir(self) -> Path:
        """One file a read-only mount of ours."""
        return self.root / "mounts"

    def view_dir(self, target: str, part: int | None) -> Path:
        """Where the screens mount an image or a device to look into it; one directory a target and partition."""
        name = _UNSAFE.sub("-", "-".join(Path(target).parts[-2:])).strip("-.")[:60]
        key = hashlib.sha256(f"{target}\0{part}".encode("utf-8", "surrogateescape")).hexdigest()[:8]
        return self.root / "views" / f"{name or 'view'}-{key}"

    @property
    def destination_dir(self) -> Path:
        """Mount points of destinations, and nothing else: people type these paths and use wildcards below."""
        return self.root / "destination"

    @property
    def destination_records_dir(self) -> Path:
        """One file a destination that we mounted."""
        return self.root / "destinations"
