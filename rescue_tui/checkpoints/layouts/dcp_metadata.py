"""What a ``.metadata`` of torch.distributed.checkpoint says, read from the inert pickle tree.

Source of the classes: torch/distributed/checkpoint/metadata.py (Metadata, TensorStorageMetadata, MetadataIndex) and
filesystem.py (_StorageInfo).
"""

from __future__ import annotations

from dataclasses import dataclass

from rescue_tui.checkpoints import limits
from rescue_tui.checkpoints.pickles import Call, Global, fields, walk

_TRANSFORMS = 16


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a tensor: where it begins and how much it spans, in elements."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """One item of the state dict: a tensor with its chunks, or (dtype "") an object."""

    name: str
    dtype: str
    size: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """Where one chunk, or one object (``origin`` None), lies."""

    name: str
    origin: tuple[int, ...] | None
    file: str
    offset: int
    length: int
    transforms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Metadata:
    """All of it; ``fault`` says why it can't be used."""

    items: tuple[Stored, ...] = ()
    slices: tuple[Slice, ...] = ()
    fault: str = ""
    cut: bool = False


def parse(data: bytes) -> Metadata:
    """The metadata in a pickle; never raises."""
    if not data.strip(b"\x00"):
        return Metadata(fault="it is empty" if not data else "it is nothing but zeros", cut=True)
    done = walk(data)
    if done.fault is not None:
        return Metadata(fault=f"{done.fault.reason} at {done.fault.offset}", cut=done.fault.kind.value == "cut")
    if done.end_offset != len(data):
        return Metadata(fault=f"{len(data) - done.end_offset} bytes follow its end")
    top = fields(done.root)
    state, storage = top.get("state_dict_metadata"), top.get("storage_data")
    if not isinstance(state, dict) or len(state) > limits.TENSORS:
        return Metadata(fault="it has no list of tensors")
    items = tuple(_stored(str(name), node) for name, node in state.items())
    slices = []
    for key, node in storage.items() if isinstance(storage, dict) else ():
        found = _slice(key, node)
        if found is None:
            return Metadata(items, fault="a place of storage in it makes no sense")
        slices.append(found)
    return Metadata(items, tuple(slices))


def _stored(name: str, node: object) -> Stored:
    known = fields(node)
    if "chunks" not in known:
        return Stored(name, "", (), ())
    chunks = known.get("chunks")
    parts = []
    for chunk in chunks if isinstance(chunks, list | tuple) else ():
        inner = fields(chunk)
        parts.append(Chunk(shape_of(inner.get("offsets")) or (), shape_of(inner.get("sizes")) or ()))
    return Stored(name, _dtype(known.get("properties")), shape_of(known.get("size")) or (), tuple(parts))


def _dtype(properties: object) -> str:
    """``TensorProperties`` pickles as a tuple that begins with the dtype; older ones as fields."""
    state = properties.state if isinstance(properties, Call) else None
    dtype = state[0] if isinstance(state, tuple) and state else fields(properties).get("dtype")
    return dtype.name if isinstance(dtype, Global) else "unknown"


def _slice(key: object, node: object) -> Slice | None:
    index, place = fields(key), fields(node)
    name, file = index.get("fqn"), place.get("relative_path")
    offset, length = place.get("offset"), place.get("length")
    if not (isinstance(name, str) and isinstance(file, str) and _natural(offset) and _natural(length)):
        return None
    assert isinstance(offset, int)
    assert isinstance(length, int)
    transforms = place.get("transform_descriptors")
    words = transforms[:_TRANSFORMS] if isinstance(transforms, list | tuple) else ()
    return Slice(name, shape_of(index.get("offset")), file, offset, length, tuple(_transform(item) for item in words))


def _transform(item: object) -> str:
    """``stream.zstd/1``: a text, or an object that has one."""
    known = fields(item)
    return item if isinstance(item, str) else str(known.get("name") or known.get("extension") or "unknown")


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def shape_of(node: object) -> tuple[int, ...] | None:
    """The numbers of a torch.Size, a tuple or a list; None when it is none of them."""
    if isinstance(node, Call) and node.dotted == "torch.Size" and node.args:
        node = node.args[0]
    if isinstance(node, list | tuple) and all(_natural(number) for number in node):
        return tuple(int(number) for number in node)
    return None
