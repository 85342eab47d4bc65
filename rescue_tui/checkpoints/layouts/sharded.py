"""Models in numbered shards: Hugging Face index files, DCP's Hugging Face variant, split GGUF.

The index is written after all shards (transformers, modeling_utils.save_pretrained), so it is the commit marker;
DCP's HuggingFaceStorageWriter with save_distributed and gguf-split write none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rescue_tui.checkpoints.desk import Desk, Gathered
from rescue_tui.checkpoints.layouts import dcp_hf
from rescue_tui.checkpoints.model import Reading, Verdict
from rescue_tui.checkpoints.names import Promise, promise
from rescue_tui.checkpoints.survey import Folder, Unit
from rescue_tui.checkpoints.tree import Tree, child
from rescue_tui.core.finding import Severity

NAME = "sharded"
_INDEX_END = ".index.json"
_SHARD = re.compile(r"^(?P<stem>.*?)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.[A-Za-z0-9]+)$")
_MAX_COUNT = 99_999
_MAX_NAMED = 16
_FORMATS = {".safetensors": "safetensors-sharded", ".gguf": "gguf"}
_MARKED = {".safetensors", ".bin", ".pt", ".pth"}


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the names of one set of shards say."""

    stem: str
    end: str
    count: int


class _Index(NamedTuple):
    """A model.safetensors.index.json: which file each tensor is in; ``fault`` when it can't be used."""

    where: Mapping[str, str]
    total_bytes: int | None
    fault: str = ""
    cut: bool = False


def numbers_of(name: str) -> tuple[Numbers, int] | None:
    """The set that a shard's name belongs to, and its number."""
    match = _SHARD.match(name)
    if not match or not 0 < int(match["count"]) <= _MAX_COUNT:
        return None
    stem = match["stem"]
    by_rank = dcp_hf.SHARD.match(name)
    if by_rank:  # of all ranks one set; their numbers are looked at there
        return Numbers(f"shard-*-{stem.partition('-')[2].partition('-')[2]}", match["end"], 0), 0
    return Numbers(stem, match["end"], int(match["count"])), int(match["number"])


def claims(tree: Tree, folder: Folder) -> Sequence[Unit]:
    """One unit for each index, and one for each set of numbered shards that no index belongs to."""
    del tree
    sets: dict[Numbers, list[str]] = defaultdict(list)
    for name in folder.candidates if "-of-" in folder.text else ():
        known = numbers_of(name)
        if known and promise(name) is not Promise.NOTHING and (known[0].end in _MARKED or known[0].end == ".gguf"):
            sets[known[0]].append(name)
    # One look for the word spares most directories a look at each name.
    indexes = (sorted(name for name in folder.files if name.endswith(_INDEX_END) and _end_of(name) in _MARKED)
               if _INDEX_END in "\n".join(folder.files) else [])
    units: list[tuple[str, list[str]]] = []
    for index in indexes:
        mine = [numbers for numbers in sets if _belongs(numbers, index)]
        units.append((index, [index, *(name for numbers in mine for name in sets.pop(numbers))]))
    units.extend((min(names), names) for numbers, names in sorted(sets.items(), key=lambda item: min(item[1]))
                 if numbers.count != 1 or len(names) > 1)
    alone = len(units) == 1
    return [Unit(NAME, folder.path if alone else folder.at(first), folder.path, tuple(map(folder.at, sorted(names))))
            for first, names in units]


def _end_of(index: str) -> str:
    return "." + index[: -len(_INDEX_END)].rpartition(".")[2]


def _belongs(numbers: Numbers, index: str) -> bool:
    """``model-00001-of-00003.safetensors`` and ``model.safetensors.index.json``, also with a variant between."""
    stem = index[: -len(_INDEX_END)]
    plain = stem.removesuffix(numbers.end)
    return stem.endswith(numbers.end) and (
        numbers.stem == plain or plain.startswith(f"{numbers.stem}.") or numbers.stem.endswith(f"-{plain}")
        or numbers.stem.startswith(f"{plain}."))


def judge(desk: Desk, unit: Unit) -> Reading:
    """Index, numbers and shards together."""
    names = [part[len(unit.directory) + 1 if unit.directory else 0 :] for part in unit.parts]
    index_name = next((name for name in names if name.endswith(_INDEX_END)), "")
    shards = [name for name in names if name != index_name]
    index = _read_index(desk, child(unit.directory, index_name)) if index_name else None
    if index is not None:
        present = desk.listing(unit.directory)
        shards = sorted({*shards, *(name for name in index.where.values() if name in present)})
    end = _end_of(index_name) if index_name else next((known[0].end for name in shards if (known := numbers_of(name))),
                                                     "")
    gathered = Gathered(_FORMATS.get(end, "torch-sharded"))
    if index_name:
        gathered.members.append(child(unit.directory, index_name))
    readings = {path[len(unit.directory) + 1 if unit.directory else 0 :]: reading
                for path, reading in desk.readings([child(unit.directory, name) for name in shards]).items()}
    for reading in readings.values():
        gathered.add(reading)
    by_rank = bool(shards) and all(dcp_hf.SHARD.match(name) for name in shards)
    _numbers(unit.directory, shards, set(index.where.values()) if index else set(), gathered)
    if index is not None:
        _compare(unit.directory, index_name, index, readings, gathered)
    elif by_rank:
        dcp_hf.merge(desk, unit.directory, readings, gathered)
    elif end in _MARKED:
        gathered.find(Severity.ERROR, "index-missing", f"There is no {_INDEX_END[1:]} for these shards, the file that "
                      "is written last; it can be made again from their headers.", Verdict.UNCOMMITTED, unit.directory)
    if not shards and not gathered.findings:
        gathered.find(Severity.ERROR, "no-data", "There are no shards.", Verdict.INCOMPLETE, unit.directory)
    return gathered.reading()


def _read_index(desk: Desk, path: str) -> _Index:
    data = desk.bytes_of(path)
    if data is None or not data.strip(b"\x00 \r\n"):
        return _Index({}, None, "it is empty, or can't be read", cut=True)
    content = desk.json_of(path)
    if not isinstance(content, dict) or not isinstance(content.get("weight_map"), dict):
        return _Index({}, None, "it is no JSON with a weight_map", cut=not data.rstrip(b"\x00 \r\n").endswith(b"}"))
    where = {str(name): file for name, file in content["weight_map"].items() if isinstance(file, str)}
    outside = [file for file in where.values() if file.startswith("/") or ".." in file.split("/") or "\x00" in file]
    if outside:
        return _Index({}, None, f"it names {outside[0]}, which is outside of this directory")
    metadata = content.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return _Index(where, total if isinstance(total, int) else None)


def _numbers(directory: str, shards: Sequence[str], named: set[str], gathered: Gathered) -> None:
    """Numbers that no file has; what the index names as well is told there."""
    sets: dict[Numbers, set[int]] = defaultdict(set)
    for name in {*shards, *named}:
        known = numbers_of(name)
        if known and known[0].count:
            sets[known[0]].add(known[1])
    for numbers, present in sorted(sets.items(), key=lambda item: item[0].stem):
        every = range(1, numbers.count + 1)
        lost = [number for number in every if number not in present]
        if lost and not (0 in present and len(present) == numbers.count):
            gathered.missing(directory, [f"{numbers.stem}-{number:05d}-of-{numbers.count:05d}{numbers.end}"
                                         for number in lost], f"the names count to {numbers.count}")
    counts = {numbers.count for numbers in sets if numbers.end != ".gguf"}
    if len(counts) > 1 and not named:
        gathered.find(Severity.WARNING, "counts-mixed", "Shards of sets with different counts lie here.", None,
                      directory)


def _compare(directory: str, index_name: str, index: _Index, readings: Mapping[str, Reading],
             gathered: Gathered) -> None:
    path = child(directory, index_name)
    if index.fault:
        gathered.find(Severity.ERROR, "index-unusable", f"{index_name} can't be used: {index.fault}.",
                      Verdict.INCOMPLETE if index.cut else Verdict.CORRUPT, path)
        return
    lost: dict[str, list[str]] = defaultdict(list)
    astray: dict[str, list[str]] = defaultdict(list)
    held = {name: {tensor.name for tensor in reading.tensors} for name, reading in readings.items()}
    for tensor, file in index.where.items():
        if file not in readings:
            lost[file].append(tensor)
        elif held[file] and tensor not in held[file] and readings[file].verdict.trusted:
            astray[file].append(tensor)
    for file, tensors in sorted(lost.items()):
        gathered.find(Severity.ERROR, "member-missing", f"{file} is missing; the index has {len(tensors)} tensors in "
                      "it.", Verdict.INCOMPLETE, child(directory, file), tensors)
    for file, tensors in sorted(astray.items()):
        gathered.find(Severity.ERROR, "index-differs", f"{file} does not hold {tensors[0]}"
                      f"{f' and {len(tensors) - 1} more' if len(tensors) > 1 else ''}, which the index has in it: they "
                      "are of different saves.", Verdict.INCONSISTENT, child(directory, file), tensors)
    for file in sorted(set(readings) - set(index.where.values())):
        gathered.find(Severity.WARNING, "member-unknown", f"{file} is not in the index.", None, child(directory, file))
    extra = sorted(name for file, names in held.items() if file in index.where.values()
                   for name in names if name not in index.where)
    if extra:
        gathered.find(Severity.WARNING, "index-lacks", f"The index does not have {len(extra)} tensors that the shards "
                      "hold.", None, path, extra[:_MAX_NAMED])
    stored = sum(block.length for tensor in gathered.tensors for block in tensor.blocks)
    if index.total_bytes is not None and not lost and index.total_bytes != stored:
        gathered.find(Severity.INFO, "total-differs", f"The index counts {index.total_bytes} bytes, the shards hold "
                      f"{stored}; shared tensors can make that so.", None, path)
