"""The formats of single files, in the order in which they are tried: content first, name second."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from rescue_tui.checkpoints import (
    flax_msgpack,
    gguf,
    hdf5,
    keras,
    nemo,
    npy,
    npz,
    safetensors,
    stored_sum,
    torch_legacy,
    torch_tar,
    torch_zip,
)
from rescue_tui.checkpoints.foreign import empty_reading, foreign_reading, foreign_words, is_all_zero, is_text
from rescue_tui.checkpoints.model import CheckpointFinding, Head, Options, Reading, Verdict
from rescue_tui.checkpoints.names import Promise, format_of_name, means_model, promise, without_temporary
from rescue_tui.checkpoints.source import EndOfBytes, Source, UnreadableBytes
from rescue_tui.checkpoints.tree import Tree
from rescue_tui.core.finding import Severity

FIRST_BYTES = 4096
LAST_BYTES = 128
# What a mistake of a reader on hostile bytes may raise: it costs this one file its reading, never the scan its others.
MISTAKES = (ValueError, LookupError, ArithmeticError, TypeError, AttributeError, AssertionError, RecursionError,
            MemoryError, NotImplementedError, struct.error)


class Format(NamedTuple):
    """A reader of single files; ``read`` gives None for a file of the format that holds no model (HDF5 of others)."""

    name: str
    matches: Callable[[Head], bool]
    read: Callable[[Source, Options], Reading | None]


FORMATS: tuple[Format, ...] = (
    Format("keras", keras.matches, keras.read),
    Format("npz", npz.matches, npz.read),
    Format("torch-zip", torch_zip.matches, torch_zip.read),
    Format("torch-legacy", torch_legacy.matches, torch_legacy.read),
    Format("nemo", nemo.matches, nemo.read),
    Format("torch-legacy", torch_tar.matches, torch_tar.read),
    Format("gguf", gguf.matches, gguf.read),
    Format("npy", npy.matches, npy.read),
    Format("hdf5", hdf5.matches, hdf5.read),
    Format("safetensors", safetensors.matches, safetensors.read),
    Format("flax-msgpack", flax_msgpack.matches, flax_msgpack.read),
)


def head_of(source: Source) -> Head:
    """What recognisers look at. What can't be read is left out."""
    size = source.size_bytes
    return Head(without_temporary(source.name.rpartition("/")[2]), size, _read(source, 0, min(FIRST_BYTES, size)),
                _read(source, max(0, size - LAST_BYTES), min(LAST_BYTES, size)))


def _read(source: Source, offset: int, length: int) -> bytes:
    try:
        return source.read_at(offset, length)
    except (EndOfBytes, UnreadableBytes):
        return b""


def recognise(head: Head) -> Format | None:
    """The first format whose reader takes the content, then the first that takes the name with it."""
    nameless = Head("", head.size_bytes, head.first, head.last)
    for candidate in (nameless, head):
        for form in FORMATS:
            if form.matches(candidate):
                return form
    return None


def read_file(source: Source, options: Options) -> Reading | None:
    """The reading of a lone file; None when it is no checkpoint and its name doesn't promise one."""
    head = head_of(source)
    promised = means_model(head.name)
    if not source.size_bytes:
        return empty_reading(source) if promised else None
    if promised and not head.first.strip(b"\x00") and not head.last.strip(b"\x00"):
        try:
            if is_all_zero(source):
                return empty_reading(source)
        except (EndOfBytes, UnreadableBytes) as error:
            return unreadable_reading(source.name, str(error))
    if promised and not (head.name.endswith(".nemo") and nemo.is_packed(head)):
        words = foreign_words(head)
        if words is not None:
            return foreign_reading(source, *words)
    form = recognise(head)
    if form is not None:
        return _guarded(form, source, options)
    if not promised:
        return None
    if is_text(head):
        return foreign_reading(source, "text", "It is a text, not a checkpoint.")
    return _unrecognised(source, head)


def _guarded(form: Format, source: Source, options: Options) -> Reading | None:
    try:
        return form.read(source, options)
    except UnreadableBytes as error:
        return unreadable_reading(source.name, str(error))
    except EndOfBytes as error:
        return _broken(form.name, source, "cut", Verdict.INCOMPLETE, f"It ends too early: {error}.")
    except MISTAKES as error:
        return _broken(form.name, source, "reader-failed", Verdict.CORRUPT,
                       f"The reader could not make sense of it ({type(error).__name__}); please report that.")


def _broken(form: str, source: Source, code: str, verdict: Verdict, words: str) -> Reading:
    return Reading(form, (CheckpointFinding(Severity.ERROR, code, words, verdict, source.name, 0, source.size_bytes),),
                   members=(source.name,))


def _unrecognised(source: Source, head: Head) -> Reading | None:
    if promise(head.name) is not Promise.STRONG:
        return None
    words = ("Its beginning is zeros: the header is lost." if not head.first.strip(b"\x00")
             else "Its content is that of no known format: the beginning may be lost.")
    return _broken(format_of_name(head.name), source, "unrecognised", Verdict.CORRUPT, words)


def unreadable_reading(path: str, reason: str) -> Reading:
    """The reading of a file that the medium does not give."""
    return Reading(format_of_name(path), (
        CheckpointFinding(Severity.ERROR, "unreadable", f"It can't be read: {reason}.", Verdict.INCOMPLETE, path),),
        members=(path,))


def read_lone(tree: Tree, options: Options, path: str) -> Reading | None:
    """The reading of a file by its path, with what a checksum in its name proves; None when it is no checkpoint."""
    try:
        with tree.open(path) as source:
            reading = read_file(source, options)
            if reading is None:
                return None
            stored = stored_sum.sum_of_name(tree, path)
            if stored is not None:
                reading = stored_sum.check(source, stored, reading)
            return reading if path in reading.members else _with_member(reading, path)
    except UnreadableBytes as error:
        return unreadable_reading(path, error.reason) if means_model(path.rpartition("/")[2]) else None


def read_member(tree: Tree, options: Options, path: str) -> Reading:
    """The reading of a file that must be a part of a save: what nobody recognises is corrupt."""
    reading = read_lone(tree, options, path)
    if reading is not None:
        return reading
    try:
        with tree.open(path) as source:
            size = source.size_bytes
    except UnreadableBytes as error:
        return unreadable_reading(path, error.reason)
    finding = (CheckpointFinding(Severity.ERROR, "unrecognised", "Its content is that of no known format.",
                                 Verdict.CORRUPT, path, 0, size) if size else
               CheckpointFinding(Severity.ERROR, "empty", "It has no bytes at all.", Verdict.INCOMPLETE, path, 0, 0))
    return Reading(format_of_name(path), (finding,), members=(path,))


def _with_member(reading: Reading, path: str) -> Reading:
    return Reading(reading.format, reading.findings, reading.tensors, reading.covered, reading.values, reading.step,
                   (*reading.members, path), reading.payload_bytes, reading.tree)
