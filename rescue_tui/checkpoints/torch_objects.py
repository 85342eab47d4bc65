"""From an inert pickle tree to what torch would make of it: tensors over storages, scalars, and a step.

Sources: torch/_utils.py and torch/_tensor.py (the ``_rebuild_*`` functions), torch/serialization.py (persistent ids),
torch/csrc/jit/serialization/pickler.cpp (TorchScript).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from rescue_tui.checkpoints.limits import NAME_BYTES, TENSORS
from rescue_tui.checkpoints.model import CheckpointFinding, Scalar, Verdict
from rescue_tui.checkpoints.pickles import Call, Global, Key, PersistentId, Walk, children, paths
from rescue_tui.checkpoints.torch_dtypes import ElementType, numpy_scalar, numpy_type, storage_type, torch_dtype
from rescue_tui.core.finding import Severity

_DIMENSIONS = 64
_LARGEST = 1 << 62
_VALUES = 100_000
_VALUE_CHARACTERS = 4096
_LISTED = 64  # scalars of longer lists are data, not settings
_ELIDED = frozenset({"_modules", "_parameters", "_buffers"})  # torch.nn.Module keeps its parts in dicts of these names
_NUMPY_MODULES = ("numpy.core.multiarray.", "numpy._core.multiarray.")
_STEP_NAMES = ("global_step", "step", "iteration", "iter", "global_steps", "steps", "num_steps", "iteration_num")
_EPOCH_NAMES = ("epoch", "current_epoch")
_STEP_DEPTH = 3


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A storage as the pickle declares it; ``kind`` is None where its class is unknown."""

    key: str
    kind: ElementType | None
    count: int
    location: str = ""

    @property
    def size_bytes(self) -> int | None:
        """Bytes that its payload must have; None where the class does not tell."""
        return None if self.kind is None else self.count * self.kind.item_bytes


@dataclass(frozen=True, slots=True)
class Inline:
    """Bytes of an array that lie in the pickle itself: offset and length in it, and the codec of the Block."""

    offset: int
    length: int
    codec: str = ""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A view of a storage, or of inline bytes. ``offset`` and ``strides`` are elements."""

    name: str
    kind: ElementType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: StorageRef | Inline

    @property
    def count(self) -> int:
        """Elements of the tensor."""
        return prod(self.shape)

    @property
    def reach(self) -> int:
        """Elements of the storage from the first to the last one that the tensor shows."""
        if not self.count:
            return 0
        return sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)) + 1


@dataclass(frozen=True, slots=True)
class Objects:
    """What one pickle declares; findings leave the file to the caller."""

    tensors: tuple[TensorRef, ...] = ()
    storages: Mapping[str, StorageRef] = field(default_factory=dict)
    values: Mapping[str, Scalar] = field(default_factory=dict)
    step: int | None = None
    findings: tuple[CheckpointFinding, ...] = ()


class _Malformed(Exception):
    pass


def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides (elements) of an array without gaps, the last index fastest."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def storage_of(reference: object) -> StorageRef | None:
    """The storage behind a persistent id ``("storage", class, key, location, count[, view])``."""
    value = reference.value if isinstance(reference, PersistentId) else None
    if not isinstance(value, tuple) or len(value) < 5 or value[0] not in ("storage", b"storage"):
        return None
    _, kind, key, location, count = value[:5]
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key) if abs(key) < _LARGEST else ""
    if not isinstance(key, str) or not _natural(count):
        return None
    return StorageRef(key, storage_type(kind), count, location if isinstance(location, str) else "")


def _view_offset(reference: object) -> int:
    # Legacy files: (view key, offset, size) of a storage that is itself a part of the one that is stored.
    value = reference.value if isinstance(reference, PersistentId) else None
    view = value[5] if isinstance(value, tuple) and len(value) > 5 else None
    return view[1] if isinstance(view, tuple) and len(view) == 3 and _natural(view[1]) else 0


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST


def _sizes(value: object) -> tuple[int, ...]:
    if isinstance(value, Call) and value.dotted == "torch.Size" and value.args:
        value = value.args[0]
    if not isinstance(value, tuple | list) or len(value) > _DIMENSIONS or not all(_natural(size) for size in value):
        raise _Malformed("a shape or strides that are none")
    return tuple(value)


def _view(name: str, args: tuple[object, ...], kind: ElementType | None = None) -> TensorRef | None:
    storage, offset, size, stride = args[:4]
    reference = storage_of(storage)
    if reference is None:
        raise _Malformed("no storage behind it")
    shape, strides = _sizes(size), _sizes(stride)
    if len(shape) != len(strides) or prod(shape) >= _LARGEST or not isinstance(offset, int) or not _natural(offset):
        raise _Malformed("a shape, strides and offset that don't fit each other")
    kind = kind or reference.kind
    return None if kind is None else TensorRef(name, kind, shape, strides, offset + _view_offset(storage), reference)


def _tensor(name: str, call: Call, walk: Walk) -> TensorRef | None:
    args = call.args
    match call.dotted:
        case "torch._utils._rebuild_tensor_v2" | "torch._utils._rebuild_qtensor" if len(args) >= 4:
            return _view(name, args)
        case "torch._utils._rebuild_tensor" if len(args) == 4:
            return _view(name, args)
        case "torch._utils._rebuild_tensor_v3" if len(args) >= 7:
            kind = torch_dtype(args[6])
            return None if kind is None else _view(name, args, kind)
        case ("numpy.core.multiarray._reconstruct" | "numpy._core.multiarray._reconstruct"
              | "numpy._core.numeric._frombuffer" | "numpy.core.numeric._frombuffer"):
            return _array(name, call, walk)
    raise _Malformed("arguments that don't fit")


_LEAVES = frozenset({
    "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_qtensor", "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v3", "numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct",
    "numpy._core.numeric._frombuffer", "numpy.core.numeric._frombuffer",
})
_META = frozenset({"torch._utils._rebuild_meta_tensor_no_storage", "torch._utils._rebuild_wrapper_subclass"})
# Functions that put something around their first argument; its name is the whole's.
_AROUND = frozenset({
    "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_device_tensor_from_numpy", "torch._utils._rebuild_device_tensor_from_cpu_tensor",
    "torch._utils._rebuild_xla_tensor", "torch.nn.parameter.Parameter", "torch.autograd.variable.Variable",
    "torch.jit._pickle.restore_type_tag", "torch.jit._pickle.build_tensorlist",
    "torch.jit._pickle.build_intlist", "torch.jit._pickle.build_doublelist", "torch.jit._pickle.build_boollist",
})
_FROM_TYPE = frozenset({"torch._tensor._rebuild_from_type_v2", "torch._tensor._rebuild_from_type"})
_SPARSE_PARTS = {
    "sparse_coo": ("indices", "values"), "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"), "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
}
_NESTED_PARTS = ("buffer", "nested_sizes", "nested_strides", "storage_offsets")


def _array(name: str, call: Call, walk: Walk) -> TensorRef | None:
    """A NumPy array: its bytes lie in the pickle. None where they are no plain run (objects, strings)."""
    if call.dotted.endswith("_frombuffer"):
        data, kind, shape, order = (*call.args, None, None, None, None)[:4]
        fortran: object = order == "F"
    elif isinstance(call.state, tuple) and len(call.state) == 5:
        _, shape, kind, fortran, data = call.state
    else:
        return None
    if isinstance(data, Call) and data.args and data.dotted.endswith("bytearray"):
        data = data.args[0]
    element = numpy_type(kind)
    if element is None or not isinstance(data, bytes):
        return None
    sizes = _sizes(shape)
    if prod(sizes) * element.item_bytes != len(data):
        raise _Malformed("an array whose bytes don't fit its shape")
    place = walk.places.get(id(data))
    if place is None or place.value is not data:
        return None
    strides = tuple(reversed(c_strides(tuple(reversed(sizes))))) if fortran else c_strides(sizes)
    return TensorRef(name, element, sizes, strides, 0,
                     Inline(place.offset, place.length, "utf8-latin1" if place.utf8 else ""))


def inside(node: object) -> Iterator[tuple[object, object]]:
    """What lies in a node, with the parts of tensors that are made of tensors under names of their own."""
    if not isinstance(node, Call):
        yield from children(node)
        return
    args = node.args
    if node.dotted in _AROUND and args:
        yield "", args[0]
    elif node.dotted in _FROM_TYPE and len(args) >= 4:
        if isinstance(args[0], Global) and isinstance(args[2], tuple):
            yield "", Call(args[0], args[2])
        yield from children(args[3])
    elif node.dotted == "torch._utils._rebuild_sparse_tensor" and len(args) >= 2 and isinstance(args[1], tuple):
        layout = args[0].args[0] if isinstance(args[0], Call) and args[0].args else args[0]
        word = layout if isinstance(layout, str) else layout.name if isinstance(layout, Global) else ""
        yield from zip(_SPARSE_PARTS.get(word.removeprefix("torch."), ("indices", "values")), args[1], strict=False)
    elif node.dotted == "torch._utils._rebuild_nested_tensor":
        yield from zip(_NESTED_PARTS, args, strict=False)
    else:
        for values in (args, node.state):
            if isinstance(values, tuple):
                yield from ((index, value) for index, value in enumerate(values)
                            if isinstance(value, Call | PersistentId | list | tuple)
                            or (isinstance(value, dict) and values is args))
        yield from children(node)


def _enters(node: object) -> bool:
    return not (isinstance(node, Call) and (node.dotted in _LEAVES or node.dotted in _META))


def _word(key: object) -> str:
    if isinstance(key, Key):
        key = key.value if isinstance(key.value, float) else "?"
    if isinstance(key, bytes):
        return key.decode("utf-8", "surrogateescape")
    if isinstance(key, Global):
        return key.dotted
    if isinstance(key, Call | PersistentId):
        return "?"
    if isinstance(key, tuple):
        return "(" + ", ".join(_word(part) for part in key) + ")"
    return key if isinstance(key, str) else str(key)


def dotted_name(path: tuple[object, ...], prefix: str = "") -> str:
    """The dotted path of a node, without the dicts that modules keep their parts in."""
    words = [_word(key) for key in path if key != "" and not (isinstance(key, str) and key in _ELIDED)]
    if prefix:
        words.insert(0, prefix)
    return ".".join(words)[:NAME_BYTES]


def _is_torch(node: Call) -> bool:
    return node.dotted.startswith("torch.")


class _Collector:
    def __init__(self, walk: Walk, prefix: str) -> None:
        self.walk = walk
        self.prefix = prefix
        self.tensors: list[TensorRef] = []
        self.names: dict[str, int] = {}
        self.values: dict[str, Scalar] = {}
        self.lists: dict[int, int] = {}
        self.without_bytes: list[str] = []
        self.unknown: list[str] = []
        self.malformed: dict[str, list[str]] = {}
        self.conjugated: list[str] = []
        self.steps: list[tuple[bool, int, int, int]] = []

    def unique(self, path: tuple[object, ...]) -> str:
        name = dotted_name(path, self.prefix)
        count = self.names.get(name, 0) + 1
        self.names[name] = count
        return name if count == 1 else f"{name}#{count}"

    def visit(self, path: tuple[object, ...], node: object) -> None:
        if isinstance(node, bool | int | float | str):
            self.scalar(path, node)
        elif isinstance(node, PersistentId):
            storage = storage_of(node)
            if storage is not None:
                kind = storage.kind
                if kind is None:
                    self.unknown.append(self.unique(path))
                else:
                    self.tensors.append(TensorRef(self.unique(path), kind, (storage.count,), (1,), _view_offset(node),
                                                  storage))
        elif isinstance(node, Call):
            self.call(path, node)

    def call(self, path: tuple[object, ...], node: Call) -> None:
        dotted = node.dotted
        if dotted in _META:
            self.without_bytes.append(dotted_name(path, self.prefix))
        elif dotted in _LEAVES:
            self.tensor(path, node)
        elif dotted.startswith(_NUMPY_MODULES) and dotted.endswith(".scalar"):
            value = numpy_scalar(node)
            if value is not None:
                self.scalar(path, value)

    def tensor(self, path: tuple[object, ...], node: Call) -> None:
        if len(self.tensors) >= TENSORS:
            return
        name = self.unique(path)
        try:
            tensor = _tensor(name, node, self.walk)
        except _Malformed as trouble:
            self.malformed.setdefault(str(trouble), []).append(name)
            return
        if tensor is not None:
            self.tensors.append(tensor)
            if isinstance(node.args[-1], dict) and (node.args[-1].get("conj") or node.args[-1].get("neg")):
                self.conjugated.append(name)
        elif _is_torch(node):
            self.unknown.append(name)

    def scalar(self, path: tuple[object, ...], value: Scalar) -> None:
        if len(self.values) >= _VALUES or (isinstance(value, str) and len(value) > _VALUE_CHARACTERS):
            return
        if path and isinstance(path[-1], int) and path[-1] >= _LISTED:
            return
        self.values.setdefault(dotted_name(path, self.prefix), value)
        word = path[-1] if path else None
        if isinstance(word, str) and len(path) <= _STEP_DEPTH and isinstance(value, int) and _natural(value):
            if word in _STEP_NAMES:
                self.steps.append((False, len(path), _STEP_NAMES.index(word), value))
            elif word in _EPOCH_NAMES:
                self.steps.append((True, len(path), _EPOCH_NAMES.index(word), value))

    def findings(self) -> Iterator[CheckpointFinding]:
        for reason, names in self.malformed.items():
            yield CheckpointFinding(Severity.ERROR, "tensor-malformed",
                                    f"The pickle describes {_some(names)} by {reason}.", Verdict.CORRUPT,
                                    tensors=tuple(names))
        if self.unknown:
            yield CheckpointFinding(Severity.WARNING, "dtype-unknown",
                                    f"The element type of {_some(self.unknown)} is unknown here, so its size can't be "
                                    "checked.", tensors=tuple(self.unknown))
        if self.without_bytes:
            yield CheckpointFinding(Severity.INFO, "no-values",
                                    f"Saved without values of its own (meta or wrapper): {_some(self.without_bytes)}.",
                                    tensors=tuple(self.without_bytes))
        if self.conjugated:
            yield CheckpointFinding(Severity.INFO, "lazy-conjugate",
                                    f"The stored values of {_some(self.conjugated)} are to be conjugated or negated "
                                    "when they are loaded.", tensors=tuple(self.conjugated))


def _some(names: list[str]) -> str:
    return some(tuple(names))


def some(names: tuple[str, ...], most: int = 5) -> str:
    """A few names for a sentence."""
    shown = ", ".join(name or "the tensor" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def most_paths(walk: Walk) -> int:
    """How many paths of a tree are looked at: a shared node counts each time, and hostile trees share it endlessly."""
    return 10_000 + 4 * walk.opcodes


def collect(walk: Walk, prefix: str = "") -> Objects:
    """Everything that a pickle declares. ``prefix`` is put before names. Bounded for any tree."""
    collector = _Collector(walk, prefix)
    for path, node in paths(walk.root, _enters, most_paths(walk), inside):
        collector.visit(path, node)
    storages: dict[str, StorageRef] = {}
    clashes: list[str] = []
    for reference in walk.persistent:
        storage = storage_of(reference)
        if storage is None:
            continue
        known = storages.setdefault(storage.key, storage)
        if known.size_bytes != storage.size_bytes:
            clashes.append(storage.key)
    findings = list(collector.findings())
    if clashes:
        hit = tuple(tensor.name for tensor in collector.tensors
                    if isinstance(tensor.storage, StorageRef) and tensor.storage.key in set(clashes))
        findings.append(CheckpointFinding(Severity.ERROR, "storage-contradiction",
                                          f"The pickle gives storage {_some(clashes)} several sizes.",
                                          Verdict.CORRUPT, tensors=hit))
    step = min(collector.steps)[3] if collector.steps else None
    return Objects(tuple(collector.tensors), storages, collector.values, step, tuple(findings))
