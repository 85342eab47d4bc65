"""Whole machines in, disks out: every kind of disk, every identity, folded paths, and hostile texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.device import DeviceKind, LbaFormat, Mount, Signature
from rescue_tui.core.disks import SignatureScan, build_disks, machine_findings, scan_targets
from rescue_tui.core.errors import DeviceError
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.machine import Machine
from rescue_tui.core.record import to_plain
from rescue_tui.core.snapshot import Snapshot, diff
from rescue_tui.core.text import printable
from tests.support.cli_services import MOMENT
from tests.support.machines import MACHINES, disks, machine

XFS = Signature("xfs", "filesystem", 0)


def scan_of(name: str, node: str, scan: SignatureScan) -> dict[str, SignatureScan]:
    return {item.path: scan for item in machine(name).of("block") if item.node == node}


# NVMe ----------------------------------------------------------------------------------------------------------------
def test_a_single_nvme_disk() -> None:
    (disk,) = disks("single-nvme").values()
    assert str(disk.id) == "nvme-nguid:36344730528039410025384500000001"
    assert (disk.kind, disk.model, disk.serial, disk.firmware) == (
        DeviceKind.NVME, "SAMSUNG MZQL23T8HCLS-00A07", "S64GNE0R508001", "GDC5902Q")
    assert (disk.size_bytes, disk.logical_sector_bytes, disk.physical_sector_bytes) == (7501476528 * 512, 512, 4096)
    assert (disk.transport, disk.slot, disk.external, disk.generation) == ("pcie", "0000:02:00.0", False, 1)
    assert disk.partition_table == "gpt"
    assert "/dev/disk/by-path/pci-0000:02:00.0-nvme-1" in disk.links
    assert disk.namespace is not None
    assert (disk.namespace.nsid, disk.namespace.eui64, disk.namespace.paths) == (1, "0025384500000001", ("nvme0n1",))
    (controller,) = disk.namespace.subsystem.controllers
    assert (controller.name, controller.state, controller.controller_id) == ("nvme0", "live", 6)


def test_the_kernels_stand_in_for_a_missing_uuid_is_no_uuid() -> None:
    (single,) = disks("single-nvme").values()
    assert single.namespace is not None
    assert single.namespace.uuid == ""
    shared = disks("multipath")["/dev/nvme0n1"]
    assert shared.namespace is not None
    assert shared.namespace.uuid == "0f6d7a5e31a24a4c8a68000000000001"


def test_partitions_come_from_the_table_not_from_names() -> None:
    (disk,) = disks("single-nvme").values()
    efi, data = disk.partitions
    assert (efi.number, efi.name, efi.start_bytes, efi.size_bytes) == (1, "EFI System", 1 << 20, 512 << 20)
    assert efi.part_uuid == machine("single-nvme").boot_part_uuid
    assert efi.type == "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
    assert str(data.id) == f"{disk.id}/part2"
    assert data.name == "scratch"  # from the kernel: udev's database has none
    assert data.mounts == (Mount("/mnt/a b", "xfs", ("ro", "norecovery", "attr2")),)
    assert not disk.mounts


def test_hidden_paths_are_folded_into_one_namespace() -> None:
    found = disks("multipath")
    assert set(found) == {"/dev/nvme0n1", "/dev/nvme0n2"}
    first, second = found["/dev/nvme0n1"], found["/dev/nvme0n2"]
    assert first.namespace is not None
    assert first.namespace.paths == ("nvme0c0n1", "nvme0c1n1")
    assert [controller.pci_slot for controller in first.namespace.subsystem.controllers] == [
        "0000:02:00.0", "0000:03:00.0"]
    assert first.slot == "0000:02:00.0, 0000:03:00.0"
    assert first.namespace.lba_format == LbaFormat(4096)
    assert first.siblings == (str(second.id),)
    assert not first.findings


def test_two_visible_nodes_of_one_namespace_are_folded_too() -> None:
    found = disks("multipath-off")
    assert set(found) == {"/dev/nvme0n1", "/dev/nvme0n2"}
    disk = found["/dev/nvme0n1"]
    assert disk.id == disks("multipath")["/dev/nvme0n1"].id
    assert disk.namespace is not None
    assert disk.namespace.paths == ("nvme0n1", "nvme1n1")
    assert [finding.code for finding in disk.findings] == ["multipath-off"]
    # Mounted through the other node: a mount of this disk all the same.
    assert disk.partitions[0].mounts == (Mount("/mnt/p", "xfs", ("rw",)),)
    assert disk.links == ("/dev/disk/by-path/pci-0-nvme-1", "/dev/disk/by-path/pci-1-nvme-1")


def test_the_node_of_a_live_controller_is_preferred() -> None:
    seen = machine("multipath-off")
    nodes = {path: replace(node, attrs={**node.attrs, "state": "dead"}) if node.name == "nvme0" else node
             for path, node in seen.nodes.items()}
    found = build_disks(replace(seen, nodes=nodes), {})
    assert {disk.node for disk in found} == {"/dev/nvme1n1", "/dev/nvme1n2"}
    assert "controller-not-live" in [finding.code for finding in found[0].findings]


def test_metadata_bytes_are_known_from_the_integrity_profile_too() -> None:
    disk = disks("mixed")["/dev/nvme0n1"]
    assert disk.namespace is not None
    assert disk.namespace.lba_format == LbaFormat(512, 8)
    assert disk.id.scheme == "nvme-nqn"


def test_a_dead_controller_and_a_device_without_driver_are_told() -> None:
    findings = {finding.code: finding.summary for finding in machine_findings(machine("mixed"))}
    assert "PHLJ0DEAD" in findings["controller-without-namespace"]
    assert "dead" in findings["controller-without-namespace"]
    assert "RAID mode" in findings["storage-without-driver"]
    assert machine_findings(machine("multipath")) == ()


# everything else -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("node", "kind", "identity", "transport", "slot", "external"), [
    ("/dev/sda", DeviceKind.ATA, "wwn:5002538e40a1b2c3", "sata", "0000:00:17.0 port 1", False),
    ("/dev/sdb", DeviceKind.SAS, "wwn:5000c500aabbccdd", "sas", "0000:05:00.0 bay 3", False),
    ("/dev/sdc", DeviceKind.USB, "serial:usb/WD Elements 2621/323034393030303132333435", "usb", "usb-2-3", True),
    ("/dev/vda", DeviceKind.VIRTIO, "serial:virtio//vol-0001", "virtio", "0000:00:02.0", False),
    ("/dev/vdb", DeviceKind.VIRTIO, "path:0000:00:03.0", "virtio", "0000:00:03.0", False),
    ("/dev/mmcblk0", DeviceKind.MMC, "serial:mmc/SU08G/0x2f4b1a77", "mmc", "0000:00:1a.0", True),
    ("/dev/mmcblk1", DeviceKind.MMC, "serial:mmc/DG4008/0x8a5c0001", "mmc", "0000:00:1a.0", False),
    ("/dev/mmcblk1boot0", DeviceKind.MMC, "serial:mmc/DG4008/0x8a5c0001 boot0", "mmc", "0000:00:1a.0", False),
    ("/dev/sr0", DeviceKind.OPTICAL, "path:0000:00:17.0 port 2", "sata", "0000:00:17.0 port 2", False),
    ("/dev/loop0", DeviceKind.LOOP, "loop:/run/root.erofs", "", "", False),
    ("/dev/md127", DeviceKind.MD, "md:00010203:04050607:08090a0b:0c0d0e0f", "", "", False),
    ("/dev/dm-0", DeviceKind.DM,
     "dm:LVM-Krl210fD6FxJQAIX8ov4Gjv8RFfyPyXXabcdef0123456789abcdef01234567", "", "", False),
    ("/dev/zram0", DeviceKind.ZRAM, "path:/devices/virtual/block/zram0", "", "", False),
])
def test_every_kind(node: str, kind: DeviceKind, identity: str, transport: str, slot: str, external: bool) -> None:
    disk = disks("mixed")[node]
    assert (disk.kind, str(disk.id), disk.transport, disk.slot, disk.external) == (
        kind, identity, transport, slot, external)


def test_empty_loops_rams_and_card_readers_are_left_out() -> None:
    assert not {"/dev/loop1", "/dev/ram0", "/dev/sdd"} & set(disks("mixed"))


def test_an_ata_disk_speaks_for_itself_through_its_identify_data() -> None:
    disk = disks("mixed")["/dev/sda"]
    assert (disk.model, disk.serial, disk.firmware) == ("Samsung SSD 860 EVO 1TB", "S3Z9NB0K123456", "RVT02B6Q")


def test_without_identify_data_the_inquiry_pages_and_udev_are_used() -> None:
    seen = machine("mixed")
    (path,) = [node.path for node in seen.nodes.values() if "vpd_pg89" in node.attrs]
    scsi = replace(seen.nodes[path], attrs={k: v for k, v in seen.nodes[path].attrs.items() if k != "vpd_pg89"})
    block = replace(seen.nodes[f"{path}/block/sda"],
                    udev={"ID_BUS": "ata", "ID_MODEL_ENC": "Samsung\\x20SSD\\x20860\\x20EVO\\x201TB\\x20\\x20"})
    found = build_disks(replace(seen, nodes={**seen.nodes, path: scsi, block.path: block}), {})
    (disk,) = [disk for disk in found if disk.node == "/dev/sda"]
    assert (disk.model, disk.serial, disk.firmware) == ("Samsung SSD 860 EVO 1TB", "S3Z9NB0K123456", "2B6Q")


def test_stacks_are_known_from_both_ends() -> None:
    found = disks("mixed")
    assert found["/dev/md127"].slaves == ("nvme0n1", "sda1")
    assert found["/dev/nvme0n1"].holders == ("md127",)
    assert found["/dev/sda"].all_holders == ("md127",)
    assert found["/dev/dm-0"].model == "vg-data"


def test_mounts_are_found_by_number_by_source_and_as_swap() -> None:
    found = disks("mixed")
    assert found["/dev/vda"].mounts[0].target == "/mnt/btr"  # btrfs has a device number of its own
    assert found["/dev/dm-0"].mounts == (Mount("/srv", "ext4", ("rw", "relatime", "errors=remount-ro")),)
    assert found["/dev/sda"].partitions[1].mounts == (Mount("[swap]", "swap", ("rw",)),)
    assert found["/dev/sda"].partitions[1].number == 5


def test_an_array_that_udev_does_not_know_is_named_by_its_members() -> None:
    seen = machine("mixed")
    path = "/devices/virtual/block/md127"
    seen = replace(seen, nodes={**seen.nodes, path: replace(seen.nodes[path], udev={})})
    scans = scan_of("mixed", "/dev/nvme0n1",
                    SignatureScan((Signature("linux_raid_member", "raid", 4096, uuid="00010203-0405"),)))
    (array,) = [disk for disk in build_disks(seen, scans) if disk.node == "/dev/md127"]
    assert str(array.id) == "md:00010203-0405"


def test_a_thunderbolt_disk_is_external() -> None:
    seen = machine("single-nvme")
    path = "/devices/pci0000:00/0000:00:06.0"
    port = replace(seen.nodes[path], attrs={**seen.nodes[path].attrs, "removable": "removable"})
    (disk,) = build_disks(replace(seen, nodes={**seen.nodes, path: port}), {})
    assert disk.external


def test_a_fixed_disk_without_capacity_is_shown_with_an_error() -> None:
    seen = machine("single-nvme")
    path = next(path for path in seen.nodes if path.endswith("/nvme0n1"))
    dead = replace(seen.nodes[path], attrs={**seen.nodes[path].attrs, "size": "0"})
    (disk,) = build_disks(replace(seen, nodes={**seen.nodes, path: dead}), {})
    assert "no-capacity" in [finding.code for finding in disk.findings]


# signatures ----------------------------------------------------------------------------------------------------------
def test_signatures_go_to_their_disk_and_partition() -> None:
    scans = {**scan_of("single-nvme", "/dev/nvme0n1p2", SignatureScan((XFS, replace(XFS, kind="LVM2_member"))))}
    (disk,) = disks("single-nvme", scans).values()
    assert [sig.kind for sig in disk.partitions[1].signatures] == ["xfs", "LVM2_member"]
    assert disk.signatures_complete


def test_a_disk_whose_scan_failed_is_never_blank() -> None:
    scans = scan_of("mixed", "/dev/sdc", SignatureScan(problem="It hangs."))
    assert disks("mixed")["/dev/sdc"].is_blank
    disk = disks("mixed", scans)["/dev/sdc"]
    assert not disk.is_blank
    assert not disk.signatures_complete


@pytest.mark.parametrize(("kinds", "table"), [
    ([("PMBR", "partition-table"), ("gpt", "partition-table")], "gpt"), ([("dos", "partition-table")], "dos"),
    ([("exfat", "filesystem"), ("dos", "partition-table")], ""), ([("PMBR", "partition-table")], ""), ([], "")])
def test_the_kind_of_partition_table(kinds: list[tuple[str, str]], table: str) -> None:
    scan = SignatureScan(tuple(Signature(kind, usage, 0) for kind, usage in kinds))
    assert disks("mixed", scan_of("mixed", "/dev/sdc", scan))["/dev/sdc"].partition_table == table


def test_what_is_scanned() -> None:
    assert [node.name for node in scan_targets(machine("multipath"))] == ["nvme0n1", "nvme0n2"]
    assert "sr0" not in [node.name for node in scan_targets(machine("mixed"))]
    assert [node.name for node in scan_targets(machine("single-nvme"))] == ["nvme0n1", "nvme0n1p1", "nvme0n1p2"]


# identity ------------------------------------------------------------------------------------------------------------
def test_swapped_names_between_two_boots_give_the_same_identities() -> None:
    one, two = disks("boot-one"), disks("boot-two")
    assert one["/dev/nvme0n1"].id == two["/dev/nvme1n1"].id
    assert one["/dev/nvme1n1"].id == two["/dev/nvme0n1"].id
    assert one["/dev/vda"].id == two["/dev/vdb"].id
    assert one["/dev/nvme0n1"].partitions[0].id == two["/dev/nvme1n1"].partitions[0].id
    assert {disk.id for disk in one.values()} == {disk.id for disk in two.values()}
    assert {str(disk.id) for disk in one.values() if disk.id.is_weak} == {"path:0000:00:0a.0"}


def test_no_identity_holds_a_device_node() -> None:
    for name in MACHINES:
        hardware = [disk for disk in disks(name).values() if disk.kind not in (DeviceKind.ZRAM, DeviceKind.LOOP)]
        assert not [disk for disk in hardware if disk.node.removeprefix("/dev/") in disk.id.value.split("/")]


def test_two_disks_with_one_identity_are_both_shown_and_told() -> None:
    seen = machine("mixed")
    nodes = {path: replace(node, attrs={**node.attrs, "serial": "vol-0001"}) if node.name == "vdb" else node
             for path, node in seen.nodes.items()}
    found = build_disks(replace(seen, nodes=nodes), {})
    twins = [disk for disk in found if disk.node in ("/dev/vda", "/dev/vdb")]
    assert [finding.code for disk in twins for finding in disk.findings] == ["duplicate-identity"] * 2
    with pytest.raises(DeviceError, match="/dev/vda, /dev/vdb"):
        Snapshot(MOMENT, found).disk(twins[0].id)


@pytest.mark.parametrize("wwid", [
    "naa.5000000000000001", "naa.3001020304050607", "t10.ATA QEMU", "naa.0", "x", "eui.0"])
def test_a_made_up_world_wide_name_identifies_nothing(wwid: str) -> None:
    seen = machine("mixed")
    nodes = {path: replace(node, attrs={**node.attrs, "wwid": wwid}) if node.name == "2:0:0:0" else node
             for path, node in seen.nodes.items()}
    (disk,) = [disk for disk in build_disks(replace(seen, nodes=nodes), {}) if disk.node == "/dev/sdb"]
    assert str(disk.id) == "serial:sas/SEAGATE ST4000NM0023/Z1Z0AAAA0000C4130000"


# hostile -------------------------------------------------------------------------------------------------------------
def texts(value: object) -> Iterator[str]:
    if isinstance(value, Enum):
        return
    if isinstance(value, str):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from texts(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from texts(item)


@pytest.mark.parametrize("name", MACHINES)
def test_every_text_of_the_model_is_printable(name: str) -> None:
    found = list(texts(tuple(disks(name).values())))
    assert len(found) > 40
    assert [text for text in found if printable(text, None) != text] == []


def test_hostile_serials_are_shown_escaped_and_found_as_shown() -> None:
    found = disks("hostile")
    nvme, virtio, usb = found["/dev/nvme0n1"], found["/dev/vda"], found["/dev/sda"]
    assert nvme.serial == r"[/b]\x1b]0;x\x07 \xc3( A/B" + "\\"
    assert nvme.model == r"\x1b[31mEVIL\x07 [/foo] \xff\xfe"
    assert virtio.serial == r"line\x0abreak\x0d\x09\x00\x7f"  # sysfs, not udev's "line_break"
    assert usb.serial.endswith("... (4096 characters)")
    assert nvme.partitions[0].name == r"a\x1b\xff[/b]" + r"\\u202eevil"
    assert virtio.mounts[0].target == r"/mnt/\x1b\x0a\xff"
    snapshot = Snapshot(MOMENT, tuple(found.values()))
    assert snapshot.find(nvme.serial) is nvme
    assert all(DeviceId.parse(str(disk.id)) == disk.id for disk in found.values())


@given(st.data())
def test_a_machine_with_broken_attributes_still_gives_disks(data: st.DataObject) -> None:
    seen = machine(data.draw(st.sampled_from(MACHINES)))
    path = data.draw(st.sampled_from(sorted(seen.nodes)))
    node = seen.nodes[path]
    junk = st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
    changed = {key: data.draw(junk) for key in node.attrs if data.draw(st.booleans())}
    broken = replace(node, attrs={**node.attrs, **changed})
    found = build_disks(replace(seen, nodes={**seen.nodes, path: broken}), {})
    assert all(printable(text, None) == text for text in texts(found))


# snapshots -----------------------------------------------------------------------------------------------------------
def test_a_disk_that_was_plugged_again_was_removed_and_added() -> None:
    seen = machine("boot-one")
    path = next(path for path in seen.nodes if path.endswith("/vda"))
    again = replace(seen.nodes[path], attrs={**seen.nodes[path].attrs, "diskseq": "99"})
    old = Snapshot(MOMENT, build_disks(seen, {}))
    new = Snapshot(MOMENT, build_disks(replace(seen, nodes={**seen.nodes, path: again}), {}))
    changes = diff(old, new)
    assert [disk.node for disk in changes.added] == [disk.node for disk in changes.removed] == ["/dev/vda"]
    assert not diff(old, old)


def test_a_disk_as_json_has_its_identity_as_one_text() -> None:
    plain = to_plain(disks("single-nvme")["/dev/nvme0n1"])
    assert isinstance(plain, dict)
    assert plain["id"] == "nvme-nguid:36344730528039410025384500000001"
    assert json.loads(json.dumps(plain)) == plain


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_survives_json(name: str) -> None:
    seen = machine(name)
    assert Machine.from_plain(json.loads(json.dumps(seen.to_plain()))) == seen
