"""The samples that `make_tf.py` wrote, as trees in memory, and tensors put together from their blocks."""

from __future__ import annotations

import json
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import zstandard

from rescue_tui.checkpoints.model import Block, TensorEntry
from rescue_tui.checkpoints.tree import MemoryTree, Tree

DIRECTORY = Path(__file__).parents[2] / "data" / "checkpoints"
_VALUES = "values.json"
_ZLIB_OR_GZIP = 47


@dataclass(frozen=True)
class Expected:
    """A tensor as its writer had it."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes


@dataclass(frozen=True)
class Sample:
    """Files of a sample by path, and the tensors in it."""

    files: Mapping[str, bytes]
    values: Mapping[str, Expected]

    @property
    def tree(self) -> MemoryTree:
        """The sample as it was written."""
        return MemoryTree(self.files)

    def changed(self, path: str, change: Callable[[bytes], bytes]) -> MemoryTree:
        """With one file changed."""
        return MemoryTree({**self.files, path: change(self.files[path])})

    def without(self, *paths: str) -> MemoryTree:
        """Without some files."""
        return MemoryTree({path: content for path, content in self.files.items() if path not in paths})


def load(name: str) -> Sample:
    """One sample; paths are relative to its directory."""
    files: dict[str, bytes] = {}
    with tarfile.open(DIRECTORY / f"{name}.tar.gz") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                files[member.name.partition("/")[2]] = content.read()
    values = {name: Expected(one["dtype"], tuple(one["shape"]), bytes.fromhex(one["bytes"]))
              for name, one in json.loads(files.pop(_VALUES)).items()}
    return Sample(files, values)


def flip(at: int, bit: int = 0) -> Callable[[bytes], bytes]:
    """One bit flipped."""
    return lambda content: content[:at] + bytes((content[at] ^ 1 << bit,)) + content[at + 1 :]


def cut(at: int) -> Callable[[bytes], bytes]:
    """The first bytes."""
    return lambda content: content[:at]


def zero(at: int, length: int) -> Callable[[bytes], bytes]:
    """Zeros over a run, the size unchanged."""
    return lambda content: content[:at] + bytes(min(length, len(content) - at)) + content[at + length :]


def decoded(tree: Tree, block: Block) -> bytes:
    """The run of bytes that a block stands for."""
    stored = block.inline
    if stored is None:
        with tree.open(block.file) as source:
            stored = source.read_at(block.offset, block.length)
    if block.codec == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress(stored)
    if block.codec in {"gzip", "zlib"}:
        return zlib.decompress(stored, _ZLIB_OR_GZIP)
    assert block.codec == ""
    return stored


def assembled(tree: Tree, tensor: TensorEntry, np: Any) -> bytes:
    """A tensor's bytes, little-endian and in C order, out of its blocks."""
    item = _item_bytes(tensor.dtype)
    whole = np.zeros((*tensor.shape, item), np.uint8)
    for block in tensor.blocks:
        run = np.frombuffer(decoded(tree, block), np.uint8)
        strides = _c_strides(block.shape) if block.strides is None else block.strides
        run = run[block.start * item :]
        part = np.lib.stride_tricks.as_strided(
            run, (*block.shape, item), (*(stride * item for stride in strides), 1), writeable=False)
        place = tuple(slice(at, at + size) for at, size in zip(block.origin, block.shape, strict=True))
        whole[place] = part
    return bytes((whole[..., ::-1] if tensor.big_endian else whole).tobytes())


def _c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _item_bytes(dtype: str) -> int:
    if dtype == "bool" or dtype.startswith("float8"):
        return 1
    return int(dtype.removeprefix("b").lstrip("abcdefghijklmnopqrstuvwxyz")) // 8
