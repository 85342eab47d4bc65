"""What an inert pickle tree is made of, and how to look at one that may be cyclic, deep or a bomb; see `pickles`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from rescue_tui.checkpoints import limits


class FaultKind(StrEnum):
    """Why a walk ended before STOP."""

    CUT = "cut"  # the bytes end
    MALFORMED = "malformed"  # an opcode that does not exist, or that makes no sense here
    LIMIT = "limit"  # a bound of ours


@dataclass(frozen=True, slots=True)
class Fault:
    """Where and why a walk ended before STOP; ``offset`` is that of the opcode, from the beginning of the data."""

    kind: FaultKind
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Global:
    """A name that the pickle would import: ``torch._utils`` ``_rebuild_tensor_v2``."""

    module: str
    name: str

    @property
    def dotted(self) -> str:
        """``module.name``."""
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """What would be a call or a new object. ``args`` is a tuple unless the pickle is malformed on purpose."""

    function: object
    args: tuple[object, ...] = ()
    kwargs: object = None
    state: object = None
    items: dict[object, object] | None = None
    appended: list[object] | None = None

    @property
    def dotted(self) -> str:
        """The dotted name of the function or class, "" if it is none."""
        return self.function.dotted if isinstance(self.function, Global) else ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PersistentId:
    """A reference to something outside the pickle."""

    value: object


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Key:
    """A dict key that is kept, but not looked up by value."""

    value: object


class Place(NamedTuple):
    """Where the pickle stores a bytes object; ``utf8``: as UTF-8 of latin-1 text (protocol 2), else as it is."""

    value: bytes
    offset: int
    length: int
    utf8: bool = False


@dataclass(frozen=True, slots=True)
class Walk:
    """The outcome: ``root`` is None where there is a fault; ``end_offset`` is behind STOP (or where the fault is).

    ``persistent`` holds every reference out of the pickle, whether the root reaches it or not. ``places`` tells by
    ``id()`` of a bytes object in the tree where its bytes lie; text that was memoized long before it was encoded has
    none.
    """

    root: object
    end_offset: int
    fault: Fault | None = None
    globals: tuple[Global, ...] = ()
    opcodes: int = 0
    persistent: tuple[PersistentId, ...] = ()
    places: Mapping[int, Place] = field(default_factory=dict)


_NOTHING: Mapping[object, object] = MappingProxyType({})


def fields(node: object) -> Mapping[object, object]:
    """The attributes of an object by name (its state: a dict, or a dict and a dict of slots); a dict is itself."""
    if isinstance(node, dict):
        return node
    if not isinstance(node, Call):
        return _NOTHING
    state = node.state
    if isinstance(state, dict):
        return state
    if isinstance(state, tuple) and len(state) == 2:
        merged: dict[object, object] = {}
        for part in state:
            if isinstance(part, dict):
                merged.update(part)
        return merged
    return node.items if node.items is not None else _NOTHING


def children(node: object) -> Iterator[tuple[object, object]]:
    """What lies below a node, with its key or index: of containers, and of objects their items and attributes."""
    if isinstance(node, dict):
        yield from node.items()
    elif isinstance(node, list | tuple):
        yield from enumerate(node)
    elif isinstance(node, Call):
        if node.items is not None:
            yield from node.items.items()
        if node.appended is not None:
            yield from enumerate(node.appended)
        state = node.state
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                yield from part.items()


def _everywhere(node: object) -> bool:
    return node is not None


def paths(root: object, enter: Callable[[object], bool] = _everywhere,
          most: int = 1_000_000, inside: Callable[[object], Iterator[tuple[object, object]]] = children,
          ) -> Iterator[tuple[tuple[object, ...], object]]:
    """Every node with its path of keys and indexes from the root, in order; at most ``most`` of them.

    A node is not entered again below itself, nor below `limits.NESTING` levels, nor if ``enter`` says no. ``inside``
    says what lies in a node.
    """
    count = 0
    yield (), root
    if not enter(root):
        return
    pending: list[tuple[tuple[object, ...], int, Iterator[tuple[object, object]]]] = [((), id(root), inside(root))]
    above = {id(root)}
    while pending:
        path, itself, inner = pending[-1]
        step = next(inner, None)
        if step is None:
            pending.pop()
            above.discard(itself)
            continue
        count += 1
        if count > most:
            return
        key, node = step
        yield (*path, key), node
        if (isinstance(node, dict | list | tuple | Call) and len(pending) < limits.NESTING and id(node) not in above
                and enter(node)):
            above.add(id(node))
            pending.append(((*path, key), id(node), inside(node)))
