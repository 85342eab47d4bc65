"""A pickle as an inert tree: what it would build is described, nothing is imported, called or executed.

    walk(data, offset=0) -> Walk(root, end_offset, fault, globals, opcodes, persistent, places)

The tree is made of plain ``dict``, ``list``, ``tuple``, ``str``, ``bytes``, ``int``, ``float``, ``bool``, ``None`` and
of four node types with identity semantics:

* `Global` (module, name): a class or function that the pickle names; equal names are one object.
* `Call` (function, args, kwargs, state, items, appended): REDUCE, NEWOBJ, OBJ, INST and what BUILD, SETITEM and APPEND
  did to the result. An object of a class is a `Call` whose attributes `fields` gives.
* `PersistentId` (value): a reference out of the pickle (torch storages).
* `Key` (value): stands for a dict key that can't be hashed cheaply (floats, long or nested tuples, huge numbers).

Resolved on the way, since they are data and not behaviour: ``collections.OrderedDict``, ``defaultdict`` and ``Counter``
are plain dicts (attributes that BUILD gives them are dropped), ``_codecs.encode(text, "latin1")`` is bytes,
``copyreg._reconstructor(cls, ...)`` is ``Call(cls)``. A set is ``Call(Global("builtins", "set"), ([...],))``.

The tree of a hostile pickle may be cyclic, very deep, or share nodes so that its paths are exponentially many: walk
it with `paths`, which is bounded, or read known fields only.

Opcodes: Lib/pickletools.py of CPython; protocols 0 to 5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from rescue_tui.checkpoints import limits
from rescue_tui.checkpoints.pickle_machine import Machine, Stopped, malformed
from rescue_tui.checkpoints.pickle_nodes import (
    Call,
    Fault,
    FaultKind,
    Global,
    Key,
    PersistentId,
    Place,
    Walk,
    children,
    fields,
    paths,
)

__all__ = ["Call", "Fault", "FaultKind", "Global", "Key", "PersistentId", "Place", "Walk", "children", "fields",
           "paths", "walk"]

_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_I32 = struct.Struct("<i")
_F64 = struct.Struct(">d")
_SET = Global("builtins", "set")
_FROZENSET = Global("builtins", "frozenset")

_Operation = Callable[[Machine], None]


def _tuple(count: int) -> _Operation:
    def operation(machine: Machine) -> None:
        if len(machine.stack) < count:
            raise malformed("nothing is on the stack")
        values = tuple(machine.stack[len(machine.stack) - count:])
        del machine.stack[len(machine.stack) - count:]
        machine.node(values)
    return operation


def _constant(value: object) -> _Operation:
    return lambda machine: machine.stack.append(value)


def _proto(machine: Machine) -> None:
    version = machine.number(_U8)
    if version > 5:
        raise malformed(f"protocol {version}")


def _frame(machine: Machine) -> None:
    length = machine.number(_U64)
    left = len(machine.data) - machine.at
    if length > left:
        raise Stopped(FaultKind.CUT, f"a frame of {length} bytes, {left} are left")


def _reduce(machine: Machine) -> None:
    args = machine.pop()
    machine.node(machine.call(machine.pop(), args))


def _new_with_keywords(machine: Machine) -> None:
    kwargs = machine.pop()
    args = machine.pop()
    machine.node(machine.call(machine.pop(), args, kwargs))


def _object(machine: Machine) -> None:
    values = machine.since_mark()
    if not values:
        raise malformed("an object without a class")
    machine.node(machine.call(values[0], tuple(values[1:])))


def _instance(machine: Machine) -> None:
    module, name = machine.line(), machine.line()
    machine.node(machine.call(machine.named(module, name), tuple(machine.since_mark())))


def _stack_global(machine: Machine) -> None:
    name, module = machine.pop(), machine.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise malformed("a global whose name is no text")
    machine.stack.append(machine.named(module, name))


def _global(machine: Machine) -> None:
    module = machine.line()
    machine.stack.append(machine.named(module, machine.line()))


def _dict(machine: Machine) -> None:
    made: dict[object, object] = {}
    machine.set_items(made, machine.since_mark())
    machine.node(made)


def _set_items(machine: Machine) -> None:
    pairs = machine.since_mark()
    machine.set_items(machine.top(), pairs)


def _set_item(machine: Machine) -> None:
    value = machine.pop()
    key = machine.pop()
    machine.set_items(machine.top(), [key, value])


def _appends(machine: Machine) -> None:
    values = machine.since_mark()
    machine.append(machine.top(), values)


def _append(machine: Machine) -> None:
    value = machine.pop()
    machine.append(machine.top(), [value])


def _add_items(machine: Machine) -> None:
    values = machine.since_mark()
    target = machine.top()
    if not isinstance(target, Call) or not target.args or not isinstance(target.args[0], list):
        raise malformed("added to what is no set")
    target.args[0].extend(values)


def _pop(machine: Machine) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.since_mark()


def _memoize(machine: Machine) -> None:
    machine.put(len(machine.memo))


def _float_line(machine: Machine) -> None:
    try:
        machine.stack.append(float(machine.line()))
    except ValueError:
        raise malformed("a number that is none") from None


def _int_line(machine: Machine) -> None:
    text = machine.line()
    machine.stack.append(text == "01" if text in ("00", "01") else machine.decimal(text))


def _string_line(machine: Machine) -> None:
    text = machine.line().strip()
    if len(text) < 2 or text[0] not in "'\"" or text[0] != text[-1]:
        raise malformed("a string without quotes")
    machine.stack.append(text[1:-1])


def _no_buffer(machine: Machine) -> None:
    raise malformed(f"a buffer that lies outside the pickle, at {machine.at}")


def _extension(layout: struct.Struct) -> _Operation:
    return lambda machine: machine.stack.append(machine.named("copyreg.extension", str(machine.number(layout))))


_OPERATIONS: dict[bytes, _Operation] = {
    b"\x80": _proto, b"\x95": _frame, b"(": Machine.mark, b"0": _pop,
    b"1": lambda m: m.since_mark().clear(), b"2": lambda m: m.stack.append(m.top()),
    b"N": _constant(None), b"\x88": _constant(True), b"\x89": _constant(False),
    b"K": lambda m: m.stack.append(m.number(_U8)), b"M": lambda m: m.stack.append(m.number(_U16)),
    b"J": lambda m: m.stack.append(m.number(_I32)), b"I": _int_line,
    b"L": lambda m: m.stack.append(m.decimal(m.line())),
    b"\x8a": lambda m: m.long(m.number(_U8)), b"\x8b": lambda m: m.long(m.number(_I32)),
    b"G": lambda m: m.stack.append(_F64.unpack(m.take(8))[0]), b"F": _float_line,
    b"X": lambda m: m.stack.append(m.text(m.number(_U32))), b"\x8c": lambda m: m.stack.append(m.text(m.number(_U8))),
    b"\x8d": lambda m: m.stack.append(m.text(m.number(_U64))), b"V": lambda m: m.stack.append(m.escaped_line()),
    b"S": _string_line, b"T": lambda m: m.old_string(m.take(m.number(_I32))),
    b"U": lambda m: m.old_string(m.take(m.number(_U8))),
    b"B": lambda m: m.stack.append(m.binary(m.number(_U32))), b"C": lambda m: m.stack.append(m.binary(m.number(_U8))),
    b"\x8e": lambda m: m.stack.append(m.binary(m.number(_U64))),
    b"\x96": lambda m: m.stack.append(m.binary(m.number(_U64))),
    b"\x97": _no_buffer, b"\x98": _no_buffer,
    b"]": lambda m: m.node([]), b"l": lambda m: m.node(m.since_mark()), b"a": _append, b"e": _appends,
    b")": _constant(()), b"t": lambda m: m.node(tuple(m.since_mark())),
    b"\x85": _tuple(1), b"\x86": _tuple(2), b"\x87": _tuple(3),
    b"}": lambda m: m.node({}), b"d": _dict, b"s": _set_item, b"u": _set_items,
    b"\x8f": lambda m: m.node(Call(_SET, ([],))), b"\x90": _add_items,
    b"\x91": lambda m: m.node(Call(_FROZENSET, (m.since_mark(),))),
    b"c": _global, b"\x93": _stack_global, b"R": _reduce, b"\x81": _reduce, b"\x92": _new_with_keywords,
    b"o": _object, b"i": _instance, b"b": Machine.build,
    b"\x82": _extension(_U8), b"\x83": _extension(_U16), b"\x84": _extension(_I32),
    b"P": lambda m: m.refer(m.line()), b"Q": lambda m: m.refer(m.pop()),
    b"p": lambda m: m.put(m.decimal(m.line())), b"q": lambda m: m.put(m.number(_U8)),
    b"r": lambda m: m.put(m.number(_U32)), b"\x94": _memoize,
    b"g": lambda m: m.get(m.decimal(m.line())), b"h": lambda m: m.get(m.number(_U8)),
    b"j": lambda m: m.get(m.number(_U32)),
}
_TABLE: tuple[_Operation | None, ...] = tuple(_OPERATIONS.get(bytes([code])) for code in range(256))
_STOP = 0x2E


def walk(data: bytes, offset: int = 0) -> Walk:
    """Walk the pickle that begins at ``offset``. Never raises: what is wrong is in ``fault``."""
    machine = Machine(data, offset)
    opcodes = 0
    at = offset
    try:
        while True:
            at = machine.at
            if at >= len(data):
                raise Stopped(FaultKind.CUT, "the bytes end before STOP")
            opcodes += 1
            if opcodes > limits.PICKLE_OPCODES:
                raise Stopped(FaultKind.LIMIT, f"more than {limits.PICKLE_OPCODES} opcodes")
            code = data[at]
            machine.at = at + 1
            if code == _STOP:
                if len(machine.stack) != 1 or machine.marks:
                    raise malformed("STOP with a stack that is not one object")
                return Walk(machine.stack[0], machine.at, None, tuple(machine.names.values()), opcodes,
                            tuple(machine.persistent), machine.places)
            operation = _TABLE[code]
            if operation is None:
                raise malformed(f"opcode 0x{code:02x} does not exist")
            operation(machine)
    except Stopped as stopped:
        fault = Fault(stopped.kind, at, stopped.reason)
        return Walk(None, at, fault, tuple(machine.names.values()), opcodes, tuple(machine.persistent))
