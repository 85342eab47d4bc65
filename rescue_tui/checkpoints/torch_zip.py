"""What torch.save writes since 1.6, and TorchScript: a zip of a pickle and raw storages, each record with a CRC-32.

Sources: torch/serialization.py, caffe2/serialize/inline_container.cc. A CRC of 0 everywhere means that none was
computed (``set_crc32_options(False)``); 0 for storages only means that they were left out (``skip_data``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from rescue_tui.checkpoints.limits import PICKLE_BYTES
from rescue_tui.checkpoints.model import Head, Options, Proof, Reading, Scalar, TensorEntry, Verdict
from rescue_tui.checkpoints.pickles import FaultKind, walk
from rescue_tui.checkpoints.source import BytesSource, EndOfBytes, Source, UnreadableBytes
from rescue_tui.checkpoints.torch_archives import split
from rescue_tui.checkpoints.torch_blocks import (
    FindingSink,
    PicklePlace,
    StoragePlace,
    check_views,
    entries,
    names_by_storage,
)
from rescue_tui.checkpoints.torch_objects import Inline, Objects, collect, some
from rescue_tui.checkpoints.torch_payload import Check, Checked, check_records, record_bytes, relative
from rescue_tui.checkpoints.zeros import PayloadSpan, inspect_zeros
from rescue_tui.checkpoints.zip_records import DEFLATED, END_MAGIC, LOCAL_MAGIC, Archive, Record, local_header
from rescue_tui.core.finding import Severity

_FORMAT, _SCRIPT_FORMAT = "torch-zip", "torchscript"
_FIRST_RECORD = re.compile(
    r"[^/]+/(?:data\.pkl|constants\.pkl|\.format_version|\.storage_alignment|\.data/[^/]+|data/\d+|constants/\d+"
    r"|bytecode\.pkl|attributes\.pkl|code/.+)$")
_BARE_RECORD = re.compile(r"[^/]+/(?:version|byteorder)$")
_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".ptl")
_STORAGE = re.compile(r"(data|constants)/(.+)$")
_PACKAGE = frozenset({".data/version", "archive_format"})  # torch.package, torch.export
_SMALL_BYTES = 64
_PADDED = b"FB"


def matches(head: Head) -> bool:
    """A zip whose first record is one of PyTorch's; or a zip's end under a checkpoint's name, the beginning lost."""
    if head.first.startswith(LOCAL_MAGIC):
        first = local_header(BytesSource(head.first), 0)
        if first is None:
            return False
        return bool(_FIRST_RECORD.match(first.name)
                    or (_BARE_RECORD.match(first.name) and _PADDED in head.first[:first.payload]))
    return END_MAGIC in head.last and head.name.endswith(_SUFFIXES)


def read(source: Source, options: Options) -> Reading:
    """Judge the newest archive in the file, and say so if there are more."""
    del options
    sink = FindingSink(source)
    try:
        archives = split(source)
    except (UnreadableBytes, EndOfBytes) as error:
        sink.error("unreadable", Verdict.INCOMPLETE, f"The structure can't be read: {error}.", error.offset,
                   error.length)
        return Reading(_FORMAT, tuple(sink.found), members=(source.name,))
    for trouble in archives.troubles:
        sink.add(Severity.WARNING if trouble.verdict is None else Severity.ERROR, trouble.code, trouble.summary,
                 trouble.verdict, trouble.offset, trouble.length)
    if len(archives.parts) > 1:
        newest = archives.parts[-1]
        sink.error("two-archives", Verdict.INCONSISTENT,
                   f"{len(archives.parts)} archives are joined (concatenated) in this file: several saves went into "
                   f"one handle. The newest begins at {newest.begin}; torch.load returns an older one.", newest.begin,
                   newest.end - newest.begin)
    return _Judge(source, archives.parts[-1], sink).reading()


def borrow(source: Source, sibling: Source) -> tuple[TensorEntry, ...]:
    """The tensors of an archive whose ``data.pkl`` is lost, under the names that a sibling of the same run gives.

    Nothing where the sibling's pickle is not proven itself, or where any storage of the two differs in key or size.
    Proofs are those of the payloads; that the names are borrowed is for the caller to say. Raises `UnreadableBytes`.
    """
    mine, other = (_Judge(one, split(one).parts[-1], FindingSink(one)) for one in (source, sibling))
    mine.check()
    other.check()
    if not other.pickles or not all(pickle.understood and pickle.proof is Proof.VERIFIED for pickle in other.pickles):
        return ()
    sizes = {f"{pickle.folder}/{key}": storage.size_bytes for pickle in other.pickles
             for key, storage in pickle.objects.storages.items()}
    stored = {name: record for name, record in mine.by_name.items() if _STORAGE.match(name)}
    if not stored or not stored.keys() <= sizes.keys():
        return ()
    if any(record.whole and record.size_bytes != sizes[name] for name, record in stored.items()):
        return ()
    # Arrays in the sibling's pickle are the sibling's own.
    mine.pickles = [replace(pickle, objects=replace(pickle.objects, tensors=tuple(
        tensor for tensor in pickle.objects.tensors if not isinstance(tensor.storage, Inline))))
        for pickle in other.pickles]
    return mine.tensors(frozenset())


@dataclass
class _Pickle:
    """One pickle of the archive (``data.pkl``, ``constants.pkl``) and the storages that belong to it."""

    record: Record
    folder: str
    proof: Proof
    objects: Objects = field(default_factory=Objects)
    tree: object = None
    understood: bool = False


class _Judge:
    def __init__(self, source: Source, archive: Archive, sink: FindingSink) -> None:
        self.source = source
        self.archive = archive
        self.sink = sink
        self.root = archive.records[0].name.partition("/")[0] + "/" if archive.records else ""
        self.by_name = {relative(record.name): record for record in reversed(archive.records)
                        if record.name.startswith(self.root)}
        used = [record for record in archive.records if record.size_bytes and record.crc is not None]
        self.crc_used = any(record.crc for record in used)
        self.script = "constants.pkl" in self.by_name
        self.package = "data.pkl" not in self.by_name and any(name in self.by_name for name in _PACKAGE)
        self.checked: dict[str, Checked] = {}
        self.pickles: list[_Pickle] = []
        self.names: dict[str, tuple[str, ...]] = {}  # storage record: tensors that view it

    def check(self) -> None:
        records = [(record, bool(_STORAGE.match(name))) for name, record in self.by_name.items()]
        self.checked = dict(zip(self.by_name, check_records(self.source, records, self.crc_used), strict=True))
        for name, folder in (("data.pkl", "data"), ("constants.pkl", "constants")):
            if name in self.by_name:
                self._read_pickle(self.by_name[name], name, folder)

    def reading(self) -> Reading:
        self.check()
        self._report_container()
        self._report_pickles()
        self._report_payloads()
        damaged = self._report_zeros()
        tensors = self.tensors(damaged)
        values: dict[str, Scalar] = {}
        for pickle in self.pickles:
            values.update(pickle.objects.values)
        main = self.pickles[0] if self.pickles else None
        covered = (self.archive.directory and self._understood()
                   and all(item.check is Check.MATCHED for item in self.checked.values()))
        payload = sum(record.present for name, record in self.by_name.items() if _STORAGE.match(name))
        return Reading(_SCRIPT_FORMAT if self.script else _FORMAT, tuple(self.sink.found), tensors, covered, values,
                       main.objects.step if main else None, (self.source.name,), payload, main.tree if main else None)

    def _understood(self) -> bool:
        return self.package or ("data.pkl" in self.by_name and all(pickle.understood for pickle in self.pickles))

    def _read_pickle(self, record: Record, name: str, folder: str) -> None:
        check = self.checked[name].check
        proof = (Proof.VERIFIED if check is Check.MATCHED
                 else Proof.UNVERIFIABLE if check is Check.NO_CHECKSUM and record.crc is not None else Proof.DAMAGED)
        pickle = _Pickle(record, folder, proof)
        self.pickles.append(pickle)
        data = record_bytes(self.source, record)
        if data is None:
            if record.whole and record.size_bytes > PICKLE_BYTES:
                self.sink.add(Severity.WARNING, "pickle-too-large", f"{name} is too large to be walked: its tensors "
                              "are not listed.", None, record.payload, record.stored_bytes)
            return
        outcome = walk(data)
        fault = outcome.fault
        if fault is not None and fault.kind is FaultKind.LIMIT:
            self.sink.add(Severity.WARNING, "pickle-limit", f"{name} is not walked to its end: {fault.reason}.", None,
                          record.payload + fault.offset, 1)
        elif fault is not None:
            self.sink.error("pickle-malformed", Verdict.CORRUPT, f"{name} is no pickle to its end: {fault.reason}.",
                            record.payload + fault.offset, 1)
        else:
            if outcome.end_offset != len(data):
                self.sink.error("pickle-trailing", Verdict.CORRUPT,
                                f"{len(data) - outcome.end_offset} bytes follow the end of the pickle in {name}.",
                                record.payload + outcome.end_offset, len(data) - outcome.end_offset)
            pickle.objects = collect(outcome, "" if folder == "data" else folder)
            pickle.tree = outcome.root
            pickle.understood = True
            for key, names in names_by_storage(pickle.objects).items():
                self.names[f"{folder}/{key}"] = names

    # Findings

    def _report_container(self) -> None:
        for trouble in self.archive.troubles:
            names = tuple(name for record in trouble.records for name in self.names.get(relative(record), ()))
            words = f"{trouble.summary} Tensors: {some(names)}." if names else trouble.summary
            self.sink.add(Severity.WARNING if trouble.verdict is None else Severity.ERROR, trouble.code, words,
                          trouble.verdict, trouble.offset, trouble.length, names)
        strangers = [record for record in self.archive.records if not record.name.startswith(self.root)]
        if strangers:
            self.sink.error("other-root", Verdict.CORRUPT, f"{strangers[0].name} lies outside {self.root}, where all "
                            "records of one save are.", strangers[0].header, 0)
        if not self.crc_used and self.archive.records:
            self.sink.add(Severity.INFO, "crc-off", "It was saved without CRC-32: only its structure can be checked.")
        version = self.by_name.get("version") or self.by_name.get(".data/version")
        if self.archive.directory and version is None and not self.package:
            self.sink.error("version-missing", Verdict.INCOMPLETE, "The record version, without which torch.load reads "
                            "nothing, is missing.")
        if self.archive.directory and ".format_version" in self.by_name and "byteorder" not in self.by_name:
            self.sink.error("byteorder-missing", Verdict.INCOMPLETE, "The record byteorder, which torch.save writes "
                            "before it ends, is missing.")

    def _report_pickles(self) -> None:
        if self.package:
            self.sink.add(Severity.INFO, "package", "A package of torch.package or torch.export: its tensors are not "
                          "listed.")
            return
        if "data.pkl" not in self.by_name:
            self.sink.error("pickle-missing", Verdict.INCOMPLETE, "data.pkl is missing: no tensor has a name or a "
                            "shape.")
        for pickle in self.pickles:
            self.sink.take(pickle.objects.findings)
            if not pickle.understood:
                continue
            lost: list[str] = []
            for key, storage in pickle.objects.storages.items():
                name = f"{pickle.folder}/{key}"
                record = self.by_name.get(name)
                if record is None:
                    lost.append(name)
                elif record.whole and storage.size_bytes not in (None, record.size_bytes):
                    self.sink.error("storage-size", Verdict.CORRUPT,
                                    f"{name} has {record.size_bytes} bytes, the pickle says {storage.size_bytes}.",
                                    record.payload, record.stored_bytes, self.names.get(name, ()))
            if lost:
                hit = tuple(name for record in lost for name in self.names.get(record, ()))
                self.sink.error("storage-missing", Verdict.INCOMPLETE, f"{some(tuple(lost))} of the pickle's storages "
                                f"are not there: {some(hit)} lost.", tensors=hit)
        if self.pickles and all(pickle.understood for pickle in self.pickles):
            extra = tuple(name for name in self.by_name if _STORAGE.match(name) and not self._declared(name))
            if extra:
                self.sink.add(Severity.WARNING, "storage-extra", f"No pickle refers to {some(extra)}.", None,
                              self.by_name[extra[0]].payload, self.by_name[extra[0]].stored_bytes)

    def _declared(self, name: str) -> bool:
        folder, _, key = name.partition("/")
        return any(pickle.folder == folder and key in pickle.objects.storages for pickle in self.pickles)

    def _report_payloads(self) -> None:
        for name, item in self.checked.items():
            record, hit = item.record, self.names.get(name, ())
            what = f"{name} ({some(hit)})" if hit else name
            place = (record.payload, record.stored_bytes, hit)
            match item.check:
                case Check.MISMATCH:
                    more = f": {item.trouble}" if item.trouble else ""
                    holes = self.source.holes(record.payload, record.stored_bytes)
                    if holes:
                        more += f"; {sum(hole.length for hole in holes)} of its bytes lie in a hole of the file system"
                    self.sink.error("crc-mismatch", Verdict.CORRUPT, f"The CRC-32 of {what} does not match{more}.",
                                    *place)
                case Check.PLACEHOLDER:
                    self.sink.error("placeholder", Verdict.INCOMPLETE, f"{what} was never written: saved with "
                                    "skip_data it is a placeholder without a CRC.", *place)
                case Check.PARTIAL if not record.whole:
                    self.sink.error("record-cut", Verdict.INCOMPLETE, f"{what} is cut: {record.present} bytes of it "
                                    "are there.", record.payload, record.present, hit)
                case Check.UNREADABLE:
                    self.sink.error("unreadable", Verdict.INCOMPLETE, f"{what} can't be read: {item.trouble}.",
                                    item.bad_offset, item.bad_length, hit)
                case Check.NO_CHECKSUM if self.crc_used or item.trouble:
                    more = f": {item.trouble}" if item.trouble else ""
                    self.sink.add(Severity.WARNING, "no-checksum", f"{what} carries no checksum{more}.", None, *place)

    def _report_zeros(self) -> frozenset[str]:
        spans = [PayloadSpan(item.record.payload, item.record.stored_bytes, self.names.get(name, (name,)))
                 for name, item in self.checked.items()
                 if item.check is Check.NO_CHECKSUM and item.record.size_bytes]
        report = inspect_zeros(self.source, spans, self.sink.shift)
        self.sink.take(report.findings)
        return report.damaged

    # Tensors

    def tensors(self, damaged: frozenset[str]) -> tuple[TensorEntry, ...]:
        big_endian = self._byteorder() == b"big"
        found: list[TensorEntry] = []
        for pickle in self.pickles:
            if not pickle.understood:
                continue
            bad = check_views(pickle.objects, self.sink) | damaged
            places = {key: place for key in pickle.objects.storages
                      if (place := self._place(f"{pickle.folder}/{key}")) is not None}
            where = PicklePlace(pickle.record.payload + self.sink.shift, pickle.proof)
            objects = pickle.objects
            if pickle.record.method == DEFLATED:  # arrays inside have no bytes of their own in the file
                objects = replace(objects, tensors=tuple(tensor for tensor in objects.tensors
                                                         if not isinstance(tensor.storage, Inline)))
            found.extend(entries(objects, places, where, self.source.name, bad, big_endian))
        return tuple(found)

    def _byteorder(self) -> bytes:
        record = self.by_name.get("byteorder")
        if record is None or not record.whole:
            return b"little"
        order = record_bytes(self.source, record, _SMALL_BYTES)
        if order not in (b"little", b"big"):
            self.sink.error("byteorder", Verdict.CORRUPT, "The record byteorder says neither little nor big.",
                            record.payload, record.stored_bytes)
        return order or b"little"

    def _place(self, name: str) -> StoragePlace | None:
        item = self.checked.get(name)
        if item is None:
            return None
        record = item.record
        proof = (Proof.VERIFIED if item.check is Check.MATCHED
                 else Proof.UNVERIFIABLE if item.check is Check.NO_CHECKSUM and record.crc is not None
                 else Proof.DAMAGED)
        packed = record.method == DEFLATED
        return StoragePlace(record.payload + self.sink.shift, record.size_bytes if packed else record.present, proof,
                            "deflate" if packed else "", record.stored_bytes)
