"""Tensors put together from blocks: any strides, any tiling, either byte order, every codec."""

from __future__ import annotations

import io
import zlib
from math import prod
from typing import Any

import google_crc32c
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rescue_tui.checkpoints import placing
from rescue_tui.checkpoints.model import Block, Proof, TensorEntry
from rescue_tui.checkpoints.placing import NotDecoded, fault_of, place, stored_bytes
from rescue_tui.checkpoints.source import BytesSource, EndOfBytes, Source
from rescue_tui.checkpoints.tree import MemoryTree

np = pytest.importorskip("numpy")
DTYPES = {"uint8": 1, "float16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16}


class MemoryScratch:
    """Scratch room in memory that tells how much went there."""

    def __init__(self) -> None:
        self.stream = io.BytesIO()

    def write(self, data: bytes) -> None:
        self.stream.write(data)

    def source(self) -> Source:
        return BytesSource(self.stream.getvalue(), "scratch")


def put_together(tree: MemoryTree, tensor: TensorEntry) -> bytes:
    result = bytearray(b"\xee" * stored_bytes(tensor))

    def write(offset: int, data: bytes | bytearray | memoryview) -> None:
        assert offset + len(data) <= len(result)
        result[offset : offset + len(data)] = data

    assert fault_of(tensor) == ""
    place(tree, tensor, MemoryScratch, write)
    return bytes(result)


def entry(dtype: str, shape: tuple[int, ...], *blocks: Block, big_endian: bool = False) -> TensorEntry:
    return TensorEntry("t", dtype, shape, blocks, Proof.VERIFIED, big_endian)


def block(length: int, shape: tuple[int, ...], **more: Any) -> Block:
    origin = more.pop("origin", (0,) * len(shape))
    return Block("f", more.pop("offset", 0), length, origin, shape, Proof.VERIFIED, **more)


@st.composite
def views(draw: st.DrawFn) -> tuple[Any, Any, int]:
    """A base array, a view of it with any strides, and where in the base the view begins."""
    base_shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    count = prod(base_shape)
    base = np.random.default_rng(count).integers(0, 256, count * DTYPES[dtype], dtype=np.uint8).view(dtype)
    view = base.reshape(base_shape)
    view = view[tuple(slice(draw(st.integers(0, size - 1)), None, draw(st.integers(1, 3))) for size in base_shape)]
    view = view.transpose(draw(st.permutations(range(view.ndim))))
    if draw(st.booleans()):
        view = np.broadcast_to(view[..., :1], (*view.shape[:-1], draw(st.integers(1, 5))))
    start = (view.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // DTYPES[dtype]
    return base, view, start


@given(views(), st.sampled_from([16, 64, 1 << 20]), st.booleans())
@settings(max_examples=400, deadline=None)
def test_any_view_comes_out_in_c_order(made: tuple[Any, Any, int], tile: int, big: bool) -> None:
    base, view, start = made
    item = base.itemsize
    strides = tuple(stride // item for stride in view.strides)
    stored = base.astype(base.dtype.newbyteorder(">")).tobytes() if big else base.tobytes()
    whole = block(len(stored), view.shape, start=start, strides=strides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placing, "TILE_BYTES", tile)
        made_bytes = put_together(MemoryTree({"f": stored}), entry(str(base.dtype), view.shape, whole, big_endian=big))
    assert made_bytes == view.tobytes()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_blocks_tile_a_tensor(rows: int, columns: int, row_step: int, column_step: int) -> None:
    whole = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    stored, blocks = b"", []
    for row in range(0, rows, row_step):
        for column in range(0, columns, column_step):
            part = whole[row : row + row_step, column : column + column_step]
            blocks.append(block(part.nbytes, part.shape, offset=len(stored), origin=(row, column)))
            stored += part.tobytes()
    assert put_together(MemoryTree({"f": stored}), entry("int32", (rows, columns), *blocks)) == whole.tobytes()


CONTENT = bytes(range(256)) * 64


@pytest.mark.parametrize(("codec", "stored"), [
    ("deflate", b""),
    ("zlib", zlib.compress(CONTENT)),
    ("zstd", zstandard.ZstdCompressor(write_checksum=True).compress(CONTENT)),
    ("utf8-latin1", CONTENT.decode("latin-1").encode()),
    ("zlib+crc32c", zlib.compress(CONTENT) + google_crc32c.value(zlib.compress(CONTENT)).to_bytes(4, "little")),
])
@pytest.mark.parametrize("held", [True, False])
def test_every_codec_is_decoded(codec: str, stored: bytes, held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if codec == "deflate":
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        stored = packer.compress(CONTENT) + packer.flush()
    if not held:
        monkeypatch.setattr(placing, "HELD_RUN_BYTES", 0)
    shape = (len(CONTENT) // 4 - 16,)
    tensor = entry("uint32", shape, block(len(stored), shape, start=16, codec=codec))
    assert put_together(MemoryTree({"f": stored}), tensor) == CONTENT[64:]
    for broken in (stored[: len(stored) // 2], b"\xff" * len(stored)):
        with pytest.raises((NotDecoded, EndOfBytes)):
            put_together(MemoryTree({"f": broken}), tensor)


def test_an_unknown_codec_is_said() -> None:
    with pytest.raises(NotDecoded, match="blosc"):
        put_together(MemoryTree({"f": b"1234"}), entry("uint8", (4,), block(4, (4,), codec="blosc")))


def test_inline_bytes_need_no_file() -> None:
    assert put_together(MemoryTree({}), entry("uint8", (2,), block(9, (2,), inline=b"ab"))) == b"ab"


def test_packed_elements_are_copied_as_they_are() -> None:
    tensor = entry("q4_0", (32,), block(18, (32,)))
    assert put_together(MemoryTree({"f": bytes(range(18))}), tensor) == bytes(range(18))


@pytest.mark.parametrize(("tensor", "words"), [
    (entry("float32", (2,)), "no bytes"),
    (entry("float32", (2,), block(4, (2,))), "fewer bytes"),
    (entry("float32", (2,), block(64, (2,), strides=(16,))), "fewer bytes"),
    (entry("float32", (4,), block(8, (2,))), "stored nowhere"),
    (entry("float32", (2,), block(8, (2,), origin=(1,))), "outside"),
    (entry("float32", (2,), block(8, (2,), strides=(-1,))), "no sense"),
    (entry("q4_0", (32,), block(9, (16,)), block(9, (16,), origin=(16,))), "can't be told apart"),
    (entry("", (), block(9, ()), block(9, ())), "can't be told apart"),
])
def test_what_can_t_be_put_together_is_said(tensor: TensorEntry, words: str) -> None:
    assert words in fault_of(tensor)


def test_memory_stays_bounded_for_a_transposed_tensor() -> None:
    import tracemalloc

    side = 3000
    stored = np.arange(side * side, dtype=np.float32)
    tree = MemoryTree({}, sources={"f": BytesSource(stored.tobytes(), "f")})
    tensor = entry("float32", (side, side), block(side * side * 4, (side, side), strides=(1, side)))
    result = np.zeros((side, side), np.float32)
    flat = result.reshape(-1).view(np.uint8)

    def write(offset: int, data: bytes | bytearray | memoryview) -> None:
        flat[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    tracemalloc.start()
    place(tree, tensor, MemoryScratch, write)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (result == stored.reshape(side, side).T).all()
    assert peak < 4 * placing.TILE_BYTES
