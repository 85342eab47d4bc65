"""Files of torch's own writers, what is in them, and where: for the tests of the readers."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from rescue_tui.checkpoints.model import Reading, TensorEntry

_NUMPY_ITEM = {"complex128": 16, "float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "float32": 4, "int32": 4,
               "uint32": 4, "qint32": 4, "complex32": 4, "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2}
DTYPES = tuple(getattr(torch, word) for word in (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex128",
    "complex64", "complex32", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz") if hasattr(torch, word))


def random_bytes(count: int, seed: int) -> bytes:
    """The same bytes for the same seed."""
    return bytes(np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8).tobytes())


def tensor_of(dtype: Any, shape: tuple[int, ...], seed: int) -> Any:
    """A tensor of random bytes (0 and 1 for bool)."""
    count = int(np.prod(shape, dtype=np.int64))
    raw = torch.frombuffer(bytearray(random_bytes(max(count, 1) * dtype.itemsize, seed)), dtype=torch.uint8)
    if dtype is torch.bool:
        return (raw[:count] % 2 == 1).reshape(shape)
    return raw.view(dtype)[:count].reshape(shape)


def saved(value: object, **options: Any) -> bytes:
    """What torch.save makes of it."""
    target = io.BytesIO()
    torch.save(value, target, **options)
    return target.getvalue()


def model(layers: int = 6, width: int = 48, seed: int = 0) -> dict[str, Any]:
    """A state with tensors of a few KiB, scalars and an optimizer."""
    state = OrderedDict()
    for layer in range(layers):
        state[f"layers.{layer}.weight"] = tensor_of(torch.float32, (width, width), seed + 2 * layer)
        state[f"layers.{layer}.bias"] = tensor_of(torch.float32, (width,), seed + 2 * layer + 1)
    return {"model": state, "step": 1200, "lr": 3e-4, "name": "run"}


def zoo() -> dict[str, Any]:
    """Every kind of tensor that a checkpoint holds in practice."""
    base = tensor_of(torch.float32, (12, 16), 7)
    state: dict[str, Any] = {f"dtype_{str(dtype)[6:]}": tensor_of(dtype, (3, 5), number)
                             for number, dtype in enumerate(DTYPES)}
    state.update(
        shared_whole=base, shared_row=base[3], shared_block=base[2:7, 3:9], transposed=base.t(),
        step_view=base[::2, ::3],
        expanded=tensor_of(torch.float32, (4, 1), 11).expand(4, 6), scalar=torch.tensor(2.5), empty=torch.empty(0),
        empty_wide=torch.empty(3, 0, 2, dtype=torch.bfloat16), one=torch.ones(1, 1, 1), tied=base,
        parameter=torch.nn.Parameter(tensor_of(torch.float16, (4, 4), 12).nan_to_num()),
        channels_last=tensor_of(torch.float32, (2, 3, 4, 5), 13).to(memory_format=torch.channels_last),
        nested={"list": [torch.arange(5), {"deep": torch.arange(6.0)}], "tuple": (torch.arange(3),)},
    )
    state.update(step=17, epoch=3)
    return state


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Tensors by dotted path, as the object that torch.load gives has them."""
    if isinstance(value, torch.Tensor):
        return {prefix: value}
    items = value.items() if isinstance(value, Mapping) else (
        enumerate(value) if isinstance(value, list | tuple) else ())
    found: dict[str, Any] = {}
    for key, inner in items:
        found.update(flat(inner, f"{prefix}.{key}" if prefix else str(key)))
    return found


def raw_bytes(tensor: Any) -> bytes:
    """The elements in C order."""
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    plain = torch.empty(tensor.shape, dtype=tensor.dtype)
    plain.copy_(tensor.detach())
    return bytes(plain.untyped_storage())[:plain.numel() * plain.element_size()]


def entry_bytes(data: bytes, entry: TensorEntry) -> bytes:
    """The elements in C order, taken from the file by the blocks of a reader."""
    item = _NUMPY_ITEM.get(entry.dtype, 1)
    target: Any = np.zeros(entry.shape, dtype=f"V{item}")
    for block in entry.blocks:
        run = data[block.offset:block.offset + block.length]
        assert len(run) == block.length
        if block.codec == "deflate":
            run = zlib.decompress(run, -15)
        elif block.codec == "utf8-latin1":
            run = run.decode("utf-8").encode("latin-1")
        elements = np.frombuffer(run, dtype=f"V{item}")[block.start:]
        strides = block.strides
        if strides is None:
            part = elements[:int(np.prod(block.shape, dtype=np.int64))].reshape(block.shape)
        else:
            reach = sum((size - 1) * stride for size, stride in zip(block.shape, strides, strict=True)) + 1
            assert reach <= len(elements)
            part = np.lib.stride_tricks.as_strided(elements, block.shape, [stride * item for stride in strides])
        target[tuple(slice(first, first + size) for first, size in zip(block.origin, block.shape, strict=True))] = part
    return bytes(target.tobytes())


def disagreements(data: bytes, reading: Reading, truth: Mapping[str, bytes], proofs: tuple[str, ...]) -> list[str]:
    """Names of tensors that the reading calls good, and that are not what was saved."""
    return [entry.name for entry in reading.tensors
            if entry.proof in proofs and (entry.name not in truth or entry_bytes(data, entry) != truth[entry.name])]


class Region(NamedTuple):
    """A run of a torch zip: what it is, and the record that it belongs to."""

    kind: str
    record: str
    start: int
    end: int


def regions(data: bytes) -> list[Region]:
    """Every byte of a whole torch zip, told apart."""
    found: list[Region] = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
        directory = archive.start_dir
    for index, info in enumerate(infos):
        name_bytes, extra_bytes = struct.unpack_from("<HH", data, info.header_offset + 26)
        name = info.filename.partition("/")[2]
        header_end = info.header_offset + 30 + name_bytes
        payload = header_end + extra_bytes
        after = infos[index + 1].header_offset if index + 1 < len(infos) else directory
        found += [Region("header", name, info.header_offset, header_end), Region("padding", name, header_end, payload),
                  Region("payload", name, payload, payload + info.compress_size),
                  Region("descriptor", name, payload + info.compress_size, after)]
    size = len(data)
    found += [Region("directory", "", directory, size - 98), Region("end64", "", size - 98, size - 42),
              Region("locator", "", size - 42, size - 22), Region("end", "", size - 22, size)]
    return [region for region in found if region.start < region.end]


def flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    """One bit changed."""
    return data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1:]


def tar_era(tensors: Mapping[str, Any]) -> bytes:
    """A file of the first releases: a tar of four members (torch can read it, nothing writes it any more)."""
    import pickle

    storages = io.BytesIO()
    described = io.BytesIO()
    pickle.dump(len(tensors), storages, protocol=2)
    pickle.dump(len(tensors), described, protocol=2)
    for number, tensor in enumerate(tensors.values()):
        plain = tensor.contiguous()
        pickle.dump((100 + number, "cpu", torch.FloatStorage), storages, protocol=2)
        storages.write(struct.pack("<q", plain.numel()) + raw_bytes(plain))
        pickle.dump((number, 100 + number, torch.FloatTensor), described, protocol=2)
        described.write(struct.pack("<i4x", plain.dim()))
        described.write(struct.pack(f"<{plain.dim()}q", *plain.shape))
        described.write(struct.pack(f"<{plain.dim()}q", *plain.stride()) + struct.pack("<q", 0))
    pickle.dump([], storages, protocol=2)

    class Writer(pickle.Pickler):
        def persistent_id(self, value: object) -> str | None:
            return str(value.number) if isinstance(value, _Numbered) else None

    objects = io.BytesIO()
    Writer(objects, protocol=2).dump({name: _Numbered(number) for number, name in enumerate(tensors)} | {"step": 5})
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:", format=tarfile.PAX_FORMAT) as archive:
        for name, raw in (("sys_info", pickle.dumps({"protocol_version": 1000, "little_endian": True}, 2)),
                          ("pickle", objects.getvalue()), ("tensors", described.getvalue()),
                          ("storages", storages.getvalue())):
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    return target.getvalue()


class _Numbered:
    def __init__(self, number: int) -> None:
        self.number = number
