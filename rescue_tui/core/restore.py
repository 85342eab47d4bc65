"""JSON back to the frozen values that `core.record.to_plain` wrote: the state of record is read by the next process."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from rescue_tui.core.errors import FormatError
from rescue_tui.core.ident import DeviceId

T = TypeVar("T")


def restore(kind: type[T], plain: object) -> T:
    """The dataclass ``kind`` from its plain form. Missing fields take their default, unknown ones are ignored.

    FormatError when a field without default is missing or has the wrong type (another version, or a torn file).
    """
    try:
        value = _restore(kind, plain)
    except (TypeError, ValueError, KeyError) as error:
        raise FormatError(
            f"This is no {kind.__name__} of Stasis: {error}.", "The file is damaged or of another version.") from error
    assert isinstance(value, kind)
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _restore(kind: Any, plain: Any) -> Any:
    if kind in (Any, object):
        return plain
    if kind is DeviceId:
        return DeviceId.parse(plain)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _restore_union(get_args(kind), plain)
    if origin is tuple:
        return _restore_tuple(get_args(kind), plain)
    if origin in (dict, Mapping):
        if not isinstance(plain, dict):
            raise TypeError(f"an object was expected, not {type(plain).__name__}")
        keyed = get_args(kind)
        return {key: _restore(keyed[1], value) for key, value in plain.items()} if keyed else dict(plain)
    if dataclasses.is_dataclass(kind):
        return _restore_dataclass(kind, plain)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(plain)
    if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    if not isinstance(plain, kind) or (kind is int and isinstance(plain, bool)):
        raise TypeError(f"{kind.__name__} was expected, not {type(plain).__name__}")
    return plain


def _restore_union(kinds: tuple[Any, ...], plain: Any) -> Any:
    if plain is None and type(None) in kinds:
        return None
    rest = [kind for kind in kinds if kind is not type(None)]
    if len(rest) != 1:
        raise TypeError("a union of several types has no plain form")
    return _restore(rest[0], plain)


def _restore_tuple(kinds: tuple[Any, ...], plain: Any) -> tuple[Any, ...]:
    if not isinstance(plain, list | tuple):
        raise TypeError(f"a list was expected, not {type(plain).__name__}")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_restore(kinds[0], item) for item in plain)
    if len(kinds) != len(plain):
        raise TypeError(f"{len(kinds)} items were expected, not {len(plain)}")
    return tuple(_restore(kind, item) for kind, item in zip(kinds, plain, strict=True))


def _restore_dataclass(kind: Any, plain: Any) -> Any:
    if not isinstance(plain, dict):
        raise TypeError(f"an object was expected for {kind.__name__}, not {type(plain).__name__}")
    hints = _hints(kind)
    values = {
        field.name: _restore(hints[field.name], plain[field.name])
        for field in dataclasses.fields(kind) if field.name in plain
    }
    return kind(**values)
