"""What `wipefs --no-act --json` prints: every signature that libblkid knows, not only the one it would settle for."""

from __future__ import annotations

import re

from rescue_tui.core.device import Signature
from rescue_tui.core.errors import FormatError
from rescue_tui.core.text import printable
from rescue_tui.core.tooltext.jsontext import load_object, objects, text

_OFFSET = re.compile(r"0x[0-9a-fA-F]{1,16}|[0-9]{1,20}")
_USAGES = frozenset({"filesystem", "raid", "crypto", "partition-table", "other"})
# Where the usage is missing (an older wipefs). Not minix: that is a file system as well.
_TABLES = frozenset({"gpt", "PMBR", "dos", "mac", "bsd", "sun", "sgi", "atari", "unixware", "solaris_x86", "ultrix"})


def parse_wipefs(output: bytes) -> tuple[Signature, ...]:
    """Signatures in the order of their offsets; FormatError when the output is something else.

    No output at all means that nothing was found: that is what wipefs before 2.38 prints for a blank disk.
    """
    if not output.strip():
        return ()
    top = load_object(output, "wipefs")
    if "signatures" not in top:
        raise FormatError("wipefs printed JSON without signatures.", "Its output is below.", printable(output))
    found = {_signature(item): None for item in objects(top["signatures"])}
    return tuple(sorted(found, key=lambda sig: (sig.offset_bytes, sig.kind)))


def _signature(item: dict[str, object]) -> Signature:
    offset = item.get("offset")
    kind = text(item, "type")
    if isinstance(offset, bool) or not kind:
        raise FormatError("wipefs printed a signature without a type.", "Its output is below.", printable(str(item)))
    if isinstance(offset, int) and offset >= 0:
        at = offset
    elif isinstance(offset, str) and _OFFSET.fullmatch(offset):
        at = int(offset, 16) if offset.startswith("0x") else int(offset)
    else:
        raise FormatError("wipefs printed a signature without an offset.", "Its output is below.", printable(str(item)))
    usage = text(item, "usage")
    if usage not in _USAGES:
        usage = "partition-table" if kind in _TABLES else "other"
    return Signature(kind, usage, at, label=text(item, "label"), uuid=text(item, "uuid"))
