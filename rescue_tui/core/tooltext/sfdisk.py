"""What ``sfdisk --json`` prints (util-linux 2.38 to 2.41). Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from rescue_tui.core.errors import FormatError
from rescue_tui.core.text import decode, printable


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A partition of a table. Start and size in sectors of the table's sector size."""

    number: int
    start_sectors: int
    size_sectors: int
    type: str
    uuid: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """A partition table; ``label`` is gpt, dos, sun ..."""

    label: str
    id: str
    sector_bytes: int
    entries: tuple[TableEntry, ...]


def parse(output: bytes) -> PartitionTable:
    """Read the JSON; FormatError when it is none. Names are made printable (they come from the disk)."""
    try:
        table = json.loads(decode(output))["partitiontable"]
        entries = tuple(
            TableEntry(number, int(item["start"]), int(item["size"]), printable(str(item.get("type", ""))),
                       printable(str(item.get("uuid", ""))), printable(str(item.get("name", ""))))
            for number, item in enumerate(table.get("partitions", ()), start=1)
        )
        return PartitionTable(str(table["label"]), printable(str(table.get("id", ""))),
                              int(table.get("sectorsize", 512)), entries)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            "The output of sfdisk is no partition table.", "Look at partition-table.txt.", str(error)) from error
