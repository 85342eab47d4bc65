"""Stable identities of devices: never a /dev name, which changes between two boots of one machine."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from rescue_tui.core.text import printable

_EMPTY_HEX = re.compile(r"^0*$")
_SLUG_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, order=True)
class DeviceId:
    """What a device is, wherever it is plugged in.

    ``scheme`` is one of nvme-nguid, nvme-eui64, nvme-uuid, nvme-nqn, nvme-serial, wwn, serial, md, dm, loop, path.
    Only ``path`` (a disk that tells nothing about itself) is bound to the slot; see `is_weak`.
    """

    scheme: str
    value: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.value}"

    def to_plain(self) -> str:
        """The identity as one string."""
        return str(self)

    @property
    def is_weak(self) -> bool:
        """True when another disk in the same slot would get the same identity."""
        return self.scheme == "path"

    def slug(self) -> str:
        """A file name made of the identity: ASCII letters, digits, ``._-``, at most 100 characters.

        Two identities can share a slug only when their first 90 safe characters agree; a hash of the full identity is
        appended whenever something was replaced or cut.
        """
        text = str(self)
        safe = _SLUG_UNSAFE.sub("-", text.replace(":", "-")).strip("-.")
        if safe == text.replace(":", "-") and len(safe) <= 100:
            return safe
        return f"{safe[:80]}-{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"

    @classmethod
    def parse(cls, text: str) -> DeviceId:
        """The inverse of `str`; ValueError when ``text`` has no scheme."""
        scheme, colon, value = text.partition(":")
        if not colon or not scheme or not value:
            raise ValueError(f"not a device identity: {text!r}")
        return cls(scheme, value)


def escape(text: str) -> str:
    r"""``text`` as a part of an identity: printable, without ``/``, and two texts never give the same one.

    `printable` alone is not enough here: it writes the byte 0x9b and U+009B alike, and keeps a backslash as it is.
    A part of more than 200 characters is cut and ends with a hash of the whole.
    """
    parts: list[str] = []
    for char in text:
        code = ord(char)
        if char in "/\\":
            parts.append(f"\\x{code:02x}")
        elif 0xDC80 <= code <= 0xDCFF:
            parts.append(f"\\x{code - 0xDC00:02x}")
        elif printable(char) == char:
            parts.append(char)
        else:
            parts.append(f"\\x{code:02x}" if code < 0x80 else f"\\U{code:08x}")
    joined = "".join(parts)
    if len(joined) <= 200:
        return joined
    return f"{joined[:120]}\\sha256={hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _given(value: str | None) -> str:
    """``value`` in lower case without dashes, colons or 0x; empty for all zeros."""
    if not value:
        return ""
    text = value.strip().lower().removeprefix("0x").replace("-", "").replace(" ", "").replace(":", "")
    return "" if _EMPTY_HEX.match(text) else text


def namespace_id(
    *, nguid: str | None, eui64: str | None, uuid: str | None, nqn: str | None, model: str, serial: str, nsid: int
) -> DeviceId:
    """Identity of an NVMe namespace (NVM Express Base 2.0, 4.5.1: NGUID, EUI-64, UUID; else subsystem NQN + nsid)."""
    if text := _given(nguid):
        return DeviceId("nvme-nguid", escape(text))
    if text := _given(eui64):
        return DeviceId("nvme-eui64", escape(text))
    if text := _given(uuid):
        return DeviceId("nvme-uuid", escape(text))
    if nqn and nqn.strip():
        return DeviceId("nvme-nqn", f"{escape(nqn.strip())}/{nsid}")
    return DeviceId("nvme-serial", f"{escape(model.strip())}/{escape(serial.strip())}/{nsid}")


def disk_id(*, wwn: str | None, bus: str, model: str, serial: str, path: str) -> DeviceId:
    """Identity of any other disk: WWN, else bus + model + serial, else the slot (weak)."""
    if text := _given(wwn.removeprefix("naa.").removeprefix("eui.") if wwn else None):
        return DeviceId("wwn", escape(text))
    if serial.strip():
        return DeviceId("serial", f"{escape(bus)}/{escape(model.strip())}/{escape(serial.strip())}")
    return virtual_id("path", path)


def virtual_id(scheme: str, name: str) -> DeviceId:
    """Identity of what has no hardware of its own (md, dm, loop), and of a place (path): slashes stay."""
    return DeviceId(scheme, "/".join(escape(part) for part in name.split("/")))


def partition_id(disk: DeviceId, number: int) -> DeviceId:
    """Identity of a partition: its disk's identity and its number in the partition table."""
    return DeviceId(disk.scheme, f"{disk.value}/part{number}")
