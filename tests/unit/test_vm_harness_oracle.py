"""The oracle's readers. Each source first shows, by a positive control, that it sees a write."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.support.vm.oracle import (
    Class,
    Counters,
    Logged,
    Watched,
    content_digest,
    parse_blockstats,
    parse_trace,
    parse_write_log,
    prepare_write_log,
    violations,
)

STATS = {
    f"{prefix}{operation}_operations": 0
    for operation in ("rd", "wr", "unmap", "flush") for prefix in ("", "failed_", "invalid_")
}


def classify(line: str) -> tuple[str, Class]:
    (command,) = parse_trace([line])
    return command.name, command.kind


@pytest.mark.parametrize(("line", "name", "kind"), [
    ("pci_nvme_io_cmd cid 0 nsid 0x1 sqid 1 opc 0x2 opname 'NVME_NVM_CMD_READ'", "io READ", Class.READ),
    ("pci_nvme_io_cmd cid 0 nsid 0x1 sqid 1 opc 0x0 opname 'NVME_NVM_CMD_FLUSH'", "io FLUSH", Class.CONTROL),
    ("pci_nvme_io_cmd cid 0 nsid 0x1 opc 0x8 opname 'NVME_NVM_CMD_WRITE_ZEROES'", "io WRITE_ZEROES", Class.WRITE),
    ("pci_nvme_io_cmd cid 0 nsid 0x1 sqid 1 opc 0x9 opname 'NVME_NVM_CMD_DSM'", "io DSM", Class.WRITE),
    ("pci_nvme_io_cmd cid 0 nsid 0x1 sqid 1 opc 0x79 opname 'NVME_ZNS_CMD_MGMT_SEND'", "io MGMT_SEND", Class.WRITE),
    ("pci_nvme_io_cmd cid 0 nsid 0x1 sqid 1 opc 0x99 opname 'NVME_NVM_CMD_UNKNOWN'", "io 0x99", Class.WRITE),
    ("pci_nvme_io_cmd cid 0 nsid 0x1 sqid 1 opc 0xe opname 'NVME_NVM_CMD_UNKNOWN'", "io 0xe", Class.READ),
    ("pci_nvme_io_cmd cid 0 nsid 0x1 sqid 1 opc 0x7a opname 'NVME_ZONED_CMD_MGMT_RECV'", "io MGMT_RECV", Class.READ),
    ("pci_nvme_admin_cmd cid 0 sqid 0 opc 0x82 opname 'NVME_ADM_CMD_UNKNOWN'", "admin 0x82", Class.READ),
    ("pci_nvme_admin_cmd cid 0 sqid 0 opc 0x84 opname 'NVME_ADM_CMD_UNKNOWN'", "admin 0x84", Class.WRITE),
    ("pci_nvme_admin_cmd cid 0 sqid 0 opc 0x1a opname 'NVME_ADM_CMD_UNKNOWN'", "admin 0x1a", Class.WRITE),
    ("pci_nvme_io_cmd cid 0 nsid 0x1 sqid 1 opc 0x99", "io 0x99", Class.WRITE),
    ("pci_nvme_admin_cmd cid 0 sqid 0 opc 0x6 opname 'NVME_ADM_CMD_IDENTIFY'", "admin IDENTIFY", Class.READ),
    ("pci_nvme_admin_cmd cid 0 sqid 0 opc 0x9 opname 'NVME_ADM_CMD_SET_FEATURES'", "admin SET_FEATURES", Class.CONTROL),
    ("pci_nvme_admin_cmd cid 0 sqid 0 opc 0x80 opname 'NVME_ADM_CMD_FORMAT_NVM'", "admin FORMAT_NVM", Class.WRITE),
    ("pci_nvme_admin_cmd cid 0 sqid 0 opc 0x10 opname 'NVME_ADM_CMD_ACTIVATE_FW'", "admin ACTIVATE_FW", Class.WRITE),
    ("scsi_req_parsed target 0 lun 0 tag 0 command 40 dir 1 length 512", "0x28", Class.READ),
    ("scsi_req_parsed target 0 lun 0 tag 0 command 53 dir 0 length 0", "0x35", Class.CONTROL),
    ("scsi_req_parsed target 0 lun 0 tag 0 command 42 dir 2 length 4096", "0x2a", Class.WRITE),
    ("scsi_req_parsed target 0 lun 0 tag 0 command 66 dir 2 length 24", "0x42", Class.WRITE),
    ("scsi_req_parsed target 0 lun 0 tag 0 command 85 dir 2 length 24", "0x55", Class.WRITE),
    ("scsi_req_parsed target 0 lun 0 tag 0 command 183 dir 1 length 8", "0xb7", Class.READ),
    ("scsi_req_parsed target 0 lun 0 tag 0 command 161 dir 1 length 512", "0xa1", Class.READ),
    ("scsi_req_parsed target 0 lun 0 tag 0 command 161 dir 2 length 512", "0xa1", Class.WRITE),
    ("scsi_req_parsed target 0 lun 0 tag 0 command 133 dir 0 length 0", "0x85", Class.WRITE),
    ("ide_exec_cmd IDE exec cmd: bus 0x1; state 0x2; cmd 0xc8", "0xc8", Class.READ),
    ("ide_exec_cmd IDE exec cmd: bus 0x1; state 0x2; cmd 0xe7", "0xe7", Class.CONTROL),
    ("ide_exec_cmd IDE exec cmd: bus 0x1; state 0x2; cmd 0xca", "0xca", Class.WRITE),
    ("ide_exec_cmd IDE exec cmd: bus 0x1; state 0x2; cmd 0x06", "0x06", Class.WRITE),
    ("ide_exec_cmd IDE exec cmd: bus 0x1; state 0x2; cmd 0xf4", "0xf4", Class.WRITE),
    ("12@1700000000.5:ide_exec_cmd IDE exec cmd: bus 0x1; state 0x2; cmd 0x35", "0x35", Class.WRITE),
])
def test_what_is_on_no_list_of_reads_counts_as_a_write(line: str, name: str, kind: Class) -> None:
    assert classify(line) == (name, kind)


def test_a_block_write_is_told_by_the_file_below_even_through_blkdebug() -> None:
    commands = tuple(parse_trace([
        'bdrv_open_common bs 0x1 filename "/a.img" flags 0x2002 format_name "raw"',
        'bdrv_open_common bs 0x2 filename "json:{"driver": "blkdebug", "image": {"driver": "raw", "file": '
        '{"driver": "file", "filename": "/b.img"}}}" flags 0x2002 format_name "blklogwrites"',
        "blk_co_pwritev blk 0x9 bs 0x1 offset 4096 bytes 512 flags 0x0",
        "blk_co_pwritev blk 0x9 bs 0x2 offset 0 bytes 1024 flags 0x6",
        "blk_co_pwritev blk 0x9 bs 0x3 offset 0 bytes 1024 flags 0x6",
        "something_else bs 0x1",
    ]))
    assert [(command.path, command.name) for command in commands] == [
        ("/a.img", "write of 512 bytes at 4096"),
        ("/b.img", "write of 1024 bytes at 0"),
        ("?", "write of 1024 bytes at 0"),
    ]


def test_counters_are_those_of_the_top_node_and_the_discards_of_the_file() -> None:
    file = {"node-name": "d-file", "stats": STATS, "driver-specific": {
        "driver": "file", "discard-nb-ok": 2, "discard-nb-failed": 1, "discard-bytes-ok": 4096,
    }}
    raw = {"node-name": "d-raw", "stats": STATS, "parent": file}
    top = {"node-name": "d", "parent": raw, "stats": {
        **STATS, "rd_operations": 7, "failed_rd_operations": 2, "wr_operations": 1, "failed_wr_operations": 1,
        "unmap_operations": 4, "flush_operations": 5, "zone_append_operations": 6,
    }}
    counters = parse_blockstats([top])["d"]
    assert counters == Counters(writes=2, unmaps=4, zone_appends=6, flushes=5, reads=7, failed_reads=2, discards=3)
    assert counters.changes == 15
    assert counters.plus(Counters(writes=1)).writes == 3


def write_log(path: Path, *entries: tuple[int, int, int]) -> None:
    data = bytearray(struct.pack("<QQQI", 0x6A736677736872, 1, len(entries), 512).ljust(512, b"\0"))
    for sector, sectors, flags in entries:
        data += struct.pack("<QQQQ", sector, sectors, flags, 0).ljust(512, b"\0")
        data += b"x" * (0 if flags & 4 else 512 * sectors)
    path.write_bytes(data)


def test_a_write_log_tells_writes_discards_and_flushes_apart(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write_log(path, (8, 2, 0), (0, 0, 1), (64, 8, 4), (16, 1, 2))
    assert parse_write_log(path) == (
        Logged("write", 8, 2), Logged("flush", 0, 0), Logged("discard", 64, 8), Logged("write", 16, 1),
    )


def test_an_untouched_write_log_has_no_entries_and_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    prepare_write_log(path)
    assert parse_write_log(path) == ()
    path.write_bytes(b"x" * 512)
    with pytest.raises(ValueError, match="no write log"):
        parse_write_log(path)


def test_a_digest_depends_on_content_and_size_not_on_holes(tmp_path: Path) -> None:
    sparse, dense, moved, longer = (tmp_path / name for name in ("sparse", "dense", "moved", "longer"))
    for path, size in ((sparse, 8 << 20), (longer, 9 << 20)):
        with path.open("wb") as file:
            file.truncate(size)
            file.seek(5 << 20)
            file.write(b"data")
    dense.write_bytes(sparse.read_bytes())
    content = bytearray(sparse.read_bytes())
    content[5 << 20], content[6 << 20] = 0, content[5 << 20]
    moved.write_bytes(content)
    assert content_digest(sparse) == content_digest(dense)
    assert len({content_digest(path) for path in (sparse, moved, longer)}) == 3


@pytest.fixture
def disk(tmp_path: Path) -> Watched:
    path = tmp_path / "disk.img"
    path.write_bytes(b"evidence".ljust(4096, b"\0"))
    log = tmp_path / "disk.log"
    prepare_write_log(log)
    return Watched("disk", path, "nvme", content_digest(path), log)


NONE: frozenset[str] = frozenset()
READ_LINE = "pci_nvme_io_cmd cid 0 nsid 0x1 sqid 1 opc 0x2 opname 'NVME_NVM_CMD_READ'"
DSM_LINE = "pci_nvme_io_cmd cid 0 nsid 0x1 sqid 1 opc 0x9 opname 'NVME_NVM_CMD_DSM'"
USB_WRITE_LINE = "scsi_req_parsed target 0 lun 0 tag 0 command 42 dir 2 length 4096"


def test_a_disk_that_was_only_read_is_untouched(disk: Watched) -> None:
    trace = tuple(parse_trace([READ_LINE, USB_WRITE_LINE]))
    assert violations([disk], {"disk": Counters(reads=5, flushes=2)}, trace, frozenset({"scsi"})) == ()


@pytest.mark.parametrize(
    "counters", [Counters(writes=1), Counters(unmaps=1), Counters(zone_appends=1), Counters(discards=1)],
)
def test_each_counter_alone_speaks_up(disk: Watched, counters: Counters) -> None:
    assert len(violations([disk], {"disk": counters}, (), NONE)) == 1


def test_missing_counters_speak_up(disk: Watched) -> None:
    assert violations([disk], {}, (), NONE) == ("disk: QEMU has no counters for it",)


def test_changed_content_alone_speaks_up(disk: Watched) -> None:
    disk.path.write_bytes(b"Evidence".ljust(4096, b"\0"))
    (found,) = violations([disk], {"disk": Counters()}, (), NONE)
    assert found.startswith("disk: the content of")


def test_a_write_log_entry_alone_speaks_up_but_a_flush_does_not(disk: Watched) -> None:
    assert disk.write_log is not None
    write_log(disk.write_log, (0, 0, 1))
    assert violations([disk], {"disk": Counters()}, (), NONE) == ()
    write_log(disk.write_log, (0, 0, 1), (8, 1, 0))
    (found,) = violations([disk], {"disk": Counters()}, (), NONE)
    assert "1 entries in its write log" in found


def test_a_traced_command_alone_speaks_up_unless_its_bus_is_shared(disk: Watched) -> None:
    trace = tuple(parse_trace([DSM_LINE]))
    assert violations([disk], {"disk": Counters()}, trace, NONE) == ("nvme: io DSM",)
    assert violations([disk], {"disk": Counters()}, trace, frozenset({"nvme"})) == ()


def test_a_block_write_to_its_file_speaks_up_on_a_shared_bus_too(disk: Watched) -> None:
    trace = tuple(parse_trace([
        f'bdrv_open_common bs 0x1 filename "{disk.path}" flags 0x2002 format_name "raw"',
        "blk_co_pwritev blk 0x9 bs 0x1 offset 0 bytes 512 flags 0x0",
    ]))
    (found,) = violations([disk], {"disk": Counters()}, trace, frozenset({"nvme"}))
    assert found == "disk: write of 512 bytes at 0"


def test_a_block_write_that_nobody_can_be_charged_with_speaks_up(disk: Watched) -> None:
    trace = tuple(parse_trace(["blk_co_pwritev blk 0x9 bs 0x7 offset 0 bytes 512 flags 0x0"]))
    assert violations([disk], {"disk": Counters()}, trace, NONE) == ("block: write of 512 bytes at 0",)
