"""sfdisk's JSON."""

from __future__ import annotations

import json

import pytest

from rescue_tui.core.errors import FormatError
from rescue_tui.core.tooltext.sfdisk import TableEntry, parse

OUTPUT = {"partitiontable": {
    "label": "gpt", "id": "AA-BB", "device": "/dev/loop0", "unit": "sectors", "firstlba": 2048, "lastlba": 65502,
    "sectorsize": 512, "partitions": [
        {"node": "/dev/loop0p1", "start": 2048, "size": 8192, "type": "0FC63DAF", "uuid": "U1", "name": "a\x1b[2J"},
        {"node": "/dev/loop0p2", "start": 10240, "size": 8192, "type": "0FC63DAF"}]}}


def test_table() -> None:
    table = parse(json.dumps(OUTPUT).encode())
    assert (table.label, table.sector_bytes) == ("gpt", 512)
    assert table.entries == (
        TableEntry(1, 2048, 8192, "0FC63DAF", "U1", "a\\x1b[2J"), TableEntry(2, 10240, 8192, "0FC63DAF"))


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"partitiontable": 3}', b'{"partitiontable": {"label": "gpt", '
                                  b'"partitions": [{"start": "x"}]}}', b"\xff"])
def test_what_is_no_table(text: bytes) -> None:
    with pytest.raises(FormatError, match="no partition table"):
        parse(text)
