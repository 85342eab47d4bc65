"""The QEMU command line is a pure function of the machine's description."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from builder.vm import (
    Controller,
    DiskBoot,
    Drive,
    Firmware,
    KernelBoot,
    Namespace,
    Ports,
    Subsystem,
    UkiBoot,
    VmSpec,
    argv,
    block_nodes,
    device_of,
)

KERNEL = KernelBoot(Path("/b/vmlinuz"), Path("/b/initrd"), "quiet")
UUID = "5c0fde10-0000-4000-8000-00000000cafe"
FIRMWARE = Firmware(Path("/f/code"), Path("/f/vars"))


def after(words: list[str], option: str) -> list[str]:
    return [value for word, value in pairwise(words) if word == option]


def test_the_whole_command_line_of_a_small_machine() -> None:
    spec = VmSpec(
        KERNEL, drives=(Drive(name="d", path=Path("/d.img"), serial="S1"),),
        ports=Ports(ttys0="socket,fd=3", hvc0="socket,fd=4", qmp="socket,fd=5"),
        cmdline_extra="stasis.debug-shell=hvc0", trace=Path("/t.log"), stay_after_poweroff=True,
    )
    nodes = (
        '{"driver":"file","filename":"/d.img","discard":"unmap","read-only":false,"node-name":"d-file"}',
        '{"driver":"raw","discard":"unmap","read-only":false,"node-name":"d","file":"d-file"}',
    )
    assert argv(spec) == [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-machine", "q35", "-accel", "tcg,thread=multi",
        "-cpu", "max", "-smp", "2", "-m", "2048", "-vga", "std", "-display", "none",
        "-device", "virtio-rng-pci", "-device", "qemu-xhci,id=xhci,p2=8,p3=8",
        "-chardev", "socket,id=ttys0,fd=3", "-serial", "chardev:ttys0",
        "-chardev", "socket,id=hvc0,fd=4", "-device", "virtio-serial-pci", "-device", "virtconsole,chardev=hvc0",
        "-chardev", "socket,id=qmp,fd=5", "-mon", "chardev=qmp,mode=control",
        "-blockdev", nodes[0], "-blockdev", nodes[1],
        "-device", "nvme,id=dev-d,drive=d,serial=S1,logical_block_size=512,physical_block_size=512",
        "-kernel", "/b/vmlinuz", "-initrd", "/b/initrd", "-append", "quiet stasis.debug-shell=hvc0",
        "-D", "/t.log", "-trace", "pci_nvme_io_cmd", "-trace", "pci_nvme_admin_cmd", "-trace", "scsi_req_parsed",
        "-trace", "ide_exec_cmd", "-trace", "blk_co_pwritev", "-trace", "bdrv_open_common", "-no-shutdown",
    ]


def test_a_serial_with_commas_reaches_the_device_whole() -> None:
    words = argv(VmSpec(KERNEL, drives=(Drive(name="d", path=Path("/d"), serial="a,b=c [/foo]"),)))
    assert "serial=a,,b=c [/foo]," in after(words, "-device")[-1]


def test_bytes_that_are_not_utf8_pass_through_a_serial() -> None:
    serial = b"\xff\xfe".decode(errors="surrogateescape")
    words = argv(VmSpec(KERNEL, drives=(Drive(name="d", path=Path("/d"), serial=serial),)))
    assert b"serial=\xff\xfe," in after(words, "-device")[-1].encode(errors="surrogateescape")


def test_bad_sectors_and_write_log_lie_between_file_and_device() -> None:
    drive = Drive(name="d", path=Path("/d"), serial="S", bad_sectors=(8, 9), write_log=Path("/d.log"))
    nodes = block_nodes(drive)
    assert [node["driver"] for node in nodes] == ["file", "raw", "blkdebug", "blklogwrites"]
    assert [node["node-name"] for node in nodes] == ["d-file", "d-raw", "d-blkdebug", "d"]
    assert (nodes[1]["file"], nodes[2]["image"], nodes[3]["file"]) == ("d-file", "d-raw", "d-blkdebug")
    errors = nodes[2]["inject-error"]
    assert errors == [
        {"event": "none", "iotype": "read", "errno": 5, "sector": sector, "once": False} for sector in (8, 9)
    ]
    assert all(node["read-only"] is False and node["discard"] == "unmap" for node in nodes)


def test_a_speed_limit_lies_below_the_write_log_and_can_be_changed_by_name() -> None:
    drive = Drive(name="d", path=Path("/d"), serial="S", throttle_bytes_per_second=1 << 20, write_log=Path("/d.log"))
    words = argv(VmSpec(KERNEL, drives=(drive,)))
    assert after(words, "-object") == [
        '{"qom-type":"throttle-group","id":"throttle-d","limits":{"bps-total":1048576}}',
    ]
    assert words.index("-object") < words.index("-blockdev")
    nodes = [json.loads(node) for node in after(words, "-blockdev")]
    assert [node["driver"] for node in nodes] == ["file", "raw", "throttle", "blklogwrites"]
    assert (nodes[2]["throttle-group"], nodes[2]["file"], nodes[3]["file"]) == ("throttle-d", "d-raw", "d-throttle")


@pytest.mark.parametrize(("kind", "device"), [
    ("nvme", "nvme,id=dev-d,bus=port-d,"), ("virtio", "virtio-blk-pci,id=dev-d,bus=port-d,"),
    ("usb", "usb-storage,id=dev-d,bus=xhci.0,removable=off,"), ("sata", "ide-hd,id=dev-d,bus=ide.0,"),
    ("scsi", "scsi-hd,id=dev-d,bus=scsi.0,"),
])
def test_each_kind_of_disk_has_its_device_and_bus(kind: str, device: str) -> None:
    drive = Drive(name="d", path=Path("/d"), serial="S", kind=kind, hotplug=True)  # type: ignore[arg-type]
    devices = after(argv(VmSpec(KERNEL, drives=(drive,))), "-device")
    assert devices[-1].startswith(device)
    assert ("pcie-root-port,id=port-d,chassis=1,slot=1" in devices) is (kind in {"nvme", "virtio"})


def test_a_disk_that_is_kept_back_has_its_nodes_and_its_port_but_no_device() -> None:
    drive = Drive(name="d", path=Path("/d"), serial="S", hotplug=True, plugged=False)
    spec = VmSpec(KERNEL, drives=(drive,))
    words = argv(spec)
    assert [json.loads(node)["node-name"] for node in after(words, "-blockdev")] == ["d-file", "d"]
    assert after(words, "-device")[-1].startswith("pcie-root-port,id=port-d")
    assert device_of(spec, drive)["bus"] == "port-d"


def test_blocks_of_4096_bytes_are_physical_as_well() -> None:
    drive = Drive(name="d", path=Path("/d"), serial="S", logical_bytes=4096)
    device = device_of(VmSpec(KERNEL, drives=(drive,)), drive)
    assert (device["logical_block_size"], device["physical_block_size"]) == (4096, 4096)


def test_a_subsystem_with_two_controllers_and_two_namespaces() -> None:
    spaces = (
        Namespace(name="n1", path=Path("/n1"), nsid=1, eui64=0x1122334455667788, uuid=UUID),
        Namespace(name="n2", path=Path("/n2"), nsid=2, shared=False, controller="c1"),
    )
    controllers = (Controller("c0", "S"), Controller("c1", "S", hotplug=True))
    subsystem = Subsystem("sub", "nqn.2026-01.org.example:s", controllers, spaces)
    devices = after(argv(VmSpec(KERNEL, subsystems=(subsystem,))), "-device")
    assert devices[-6:] == [
        "pcie-root-port,id=port-c1,chassis=1,slot=1",
        "nvme-subsys,id=sub,nqn=nqn.2026-01.org.example:s",
        "nvme,id=c0,serial=S,subsys=sub",
        "nvme,id=c1,serial=S,subsys=sub,bus=port-c1",
        "nvme-ns,id=dev-n1,bus=c0,drive=n1,nsid=1,shared=on,logical_block_size=512,physical_block_size=512,"
        f"eui64=1234605616436508552,uuid={UUID}",
        "nvme-ns,id=dev-n2,bus=c1,drive=n2,nsid=2,shared=off,logical_block_size=512,physical_block_size=512",
    ]


def test_a_uki_takes_more_kernel_command_line_through_smbios() -> None:
    words = argv(VmSpec(UkiBoot(Path("/b/stasis.efi")), firmware=FIRMWARE, cmdline_extra="a=1,2 b"))
    assert after(words, "-smbios") == ["type=11,value=io.systemd.stub.kernel-cmdline-extra=a=1,,2 b"]
    assert after(words, "-machine") == ["q35,pflash0=code,pflash1=variables"]
    assert after(words, "-kernel") == ["/b/stasis.efi"]
    assert after(words, "-append") == []


def test_booting_a_disk_names_it_by_boot_index() -> None:
    stick = Drive(name="stick", path=Path("/s"), kind="usb", serial="B", removable=True, boot_index=0)
    words = argv(VmSpec(DiskBoot(), drives=(stick,), firmware=FIRMWARE))
    assert after(words, "-device")[-1].endswith(",bootindex=0")
    assert "-kernel" not in words
    nodes = [json.loads(node) for node in after(words, "-blockdev")]
    assert [node["node-name"] for node in nodes] == ["code", "variables", "stick-file", "stick"]
    assert nodes[0]["read-only"] is True


def test_a_serial_port_that_is_left_out_keeps_the_next_one_in_its_place() -> None:
    words = argv(VmSpec(KERNEL, ports=Ports(ttys1="socket,fd=4")))
    assert after(words, "-serial") == ["none", "chardev:ttys1"]


def test_the_human_monitor_shares_the_terminal() -> None:
    words = argv(VmSpec(KERNEL, ports=Ports(ttys0="stdio,mux=on,signal=off", monitor_on_serial=True)))
    assert after(words, "-chardev") == ["stdio,id=ttys0,mux=on,signal=off"]
    assert after(words, "-mon") == ["chardev=ttys0,mode=readline"]


def test_a_machine_has_a_network_card_only_where_it_is_given_a_network() -> None:
    words = argv(VmSpec(KERNEL, network="stream,server=on,addr.type=unix,addr.path=/n"))
    assert after(words, "-netdev") == ["stream,id=network,server=on,addr.type=unix,addr.path=/n"]
    assert "virtio-net-pci,netdev=network" in after(words, "-device")
    assert "-netdev" not in argv(VmSpec(KERNEL))


def test_kvm_uses_the_host_cpu() -> None:
    words = argv(replace(VmSpec(KERNEL), accel="kvm"))
    assert (after(words, "-accel"), after(words, "-cpu")) == (["kvm"], ["host"])


def test_machines_that_can_not_be_are_refused() -> None:
    one = Drive(name="d", path=Path("/d"), serial="S", kind="sata")
    with pytest.raises(ValueError, match="one name"):
        argv(VmSpec(KERNEL, drives=(one, one)))
    with pytest.raises(ValueError, match="firmware"):
        argv(VmSpec(DiskBoot()))
    with pytest.raises(ValueError, match="SATA ports"):
        argv(VmSpec(KERNEL, drives=tuple(replace(one, name=f"d{number}") for number in range(7))))
