"""Zip archives and arrays built without numpy, as Python's zipfile and numpy lay them out."""

from __future__ import annotations

import io
import struct
import zipfile


def array(descr: str, shape: tuple[int, ...], data: bytes, fortran: bool = False) -> bytes:
    """An ``.npy`` file of version 1.0."""
    text = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_STORED, zip64: bool = True) -> bytes:
    """A zip as ``numpy.savez`` writes it: every local header holds sizes and a zip64 field."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as target:
        for name, data in members.items():
            with target.open(name, "w", force_zip64=zip64) as member:
                member.write(data)
    return stream.getvalue()
