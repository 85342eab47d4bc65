"""What kind of disk a block node is, how it is reached, and what it calls itself: from ancestry, never from its name.

Source: Documentation/ABI (sysfs-block, sysfs-bus-usb, sysfs-bus-pci), SPC-5 7.7 (VPD pages 80h, 89h), ACS-4 7.13
(IDENTIFY DEVICE data), devices.txt for what /proc/devices calls a driver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rescue_tui.core.device import DeviceKind
from rescue_tui.core.machine import Machine, SysNode

_BY_DRIVER = {
    "loop": DeviceKind.LOOP, "md": DeviceKind.MD, "mdp": DeviceKind.MD, "device-mapper": DeviceKind.DM,
    "zram": DeviceKind.ZRAM, "ramdisk": DeviceKind.RAM, "sr": DeviceKind.OPTICAL,
}
_SCSI_OPTICAL_TYPES = frozenset({"5", "7"})
_ESCAPED = re.compile(r"\\x([0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class Attachment:
    """How a disk is reached and what it says of itself. Texts are raw: unprintable characters are still in."""

    kind: DeviceKind
    transport: str
    slot: str
    external: bool
    model: str = ""
    serial: str = ""
    firmware: str = ""
    wwn: str = ""


def kind_of(machine: Machine, block: SysNode) -> DeviceKind:
    """The kind of a whole disk: its own attributes and driver for virtual ones, else the nearest bus above it."""
    if block.attr("loop/backing_file"):
        return DeviceKind.LOOP
    if "dm/name" in block.attrs:
        return DeviceKind.DM
    if "md/level" in block.attrs or "md/metadata_version" in block.attrs:
        return DeviceKind.MD
    if kind := _BY_DRIVER.get(machine.majors.get(block.dev[0], "")):
        return kind
    above = machine.ancestors(block.path)
    for node in above:
        if node.subsystem in ("nvme", "nvme-subsystem"):
            return DeviceKind.NVME
        if node.subsystem == "scsi":
            return _scsi_kind(node, above)
        if node.subsystem == "mmc":
            return DeviceKind.MMC
        if node.subsystem == "usb":
            return DeviceKind.USB
        if node.subsystem == "virtio":
            return DeviceKind.VIRTIO
    return DeviceKind.OTHER


def _scsi_kind(device: SysNode, above: tuple[SysNode, ...]) -> DeviceKind:
    if device.attr("type").strip() in _SCSI_OPTICAL_TYPES:
        return DeviceKind.OPTICAL
    if any(node.subsystem == "usb" for node in above):
        return DeviceKind.USB
    # A SATA disk behind a SAS adapter is an ATA disk too: the translation layer gives it the vendor "ATA".
    if device.attr("vendor").strip() == "ATA" or any("ata_port" in node.classes for node in above):
        return DeviceKind.ATA
    if _on_sas(above):
        return DeviceKind.SAS
    return DeviceKind.SCSI


def _on_sas(above: tuple[SysNode, ...]) -> bool:
    return any(name.startswith("sas_") for node in above for name in node.classes)


def attach(machine: Machine, block: SysNode) -> Attachment:
    """Everything about how ``block`` is attached. Namespaces get model and serial from their subsystem instead."""
    above = machine.ancestors(block.path)
    kind = kind_of(machine, block)
    scsi = next((node for node in above if node.subsystem == "scsi" and "vendor" in node.attrs), None)
    usb = _usb_device(above)
    external = is_external(above)
    slot = _slot(above, scsi, usb)
    transport = _transport(kind, above)
    if kind is DeviceKind.LOOP:
        return Attachment(kind, "", "", False)
    if kind is DeviceKind.DM:
        return Attachment(kind, "", "", False, model=block.attr("dm/name"))
    if kind is DeviceKind.MD:
        return Attachment(kind, "", "", False, model=f"md {block.attr('md/level')}".strip())
    if kind is DeviceKind.MMC:
        card = next((node for node in above if node.subsystem == "mmc"), None)
        if card is not None:
            return Attachment(kind, transport, slot, external, card.attr("name").strip(), card.attr("serial").strip(),
                              card.attr("fwrev").strip())
    if scsi is not None:
        return _scsi(block, scsi, usb, Attachment(kind, transport, slot, external))
    return Attachment(kind, transport, slot, external, block.udev.get("ID_MODEL", "").strip(),
                      _blank(block.attr("serial")) or _blank(block.udev.get("ID_SERIAL_SHORT", "")),
                      block.udev.get("ID_REVISION", ""), _wwn(block.attr("wwid")))


def _scsi(block: SysNode, scsi: SysNode, usb: SysNode | None, base: Attachment) -> Attachment:
    identify = _identify_data(scsi.attr("vpd_pg89"))
    vendor, model = scsi.attr("vendor").strip(" \0"), scsi.attr("model").strip(" \0")
    if identify is not None:
        model = identify.model or model
    elif vendor == "ATA" and block.udev.get("ID_BUS") == "ata":
        model = unescape_udev(block.udev.get("ID_MODEL_ENC", "")).strip() or model
    elif vendor not in ("ATA", ""):
        model = f"{vendor} {model}"
    serial = identify.serial if identify is not None else ""
    # A USB bridge often makes up its inquiry pages; the serial of the USB device is what lsusb and the label show.
    serial = serial or (_blank(usb.attr("serial")) if usb is not None else "")
    serial = serial or _vpd_serial(scsi.attr("vpd_pg80")) or _blank(block.udev.get("ID_SERIAL_SHORT", ""))
    firmware = (identify.firmware if identify is not None else "") or scsi.attr("rev").strip(" \0")
    wwn = _wwn(scsi.attr("wwid")) or _wwn(_udev_wwn(block))
    return Attachment(base.kind, base.transport, base.slot, base.external, model.strip(), serial, firmware, wwn)


@dataclass(frozen=True, slots=True)
class _Identify:
    model: str
    serial: str
    firmware: str


def _identify_data(page: str) -> _Identify | None:
    """Model, serial and firmware from VPD page 89h: SAT-4 puts the IDENTIFY data (512 bytes) at offset 60."""
    raw = page.encode("utf-8", "surrogateescape")
    if len(raw) < 60 + 512 or raw[1] != 0x89 or raw[56] not in (0xEC, 0xA1):
        return None
    data = raw[60:]
    return _Identify(_ata_text(data[54:94]), _ata_text(data[20:40]), _ata_text(data[46:54]))


def _ata_text(words: bytes) -> str:
    """ATA strings hold the first character of each pair in the upper byte of a little-endian word."""
    swapped = bytes(words[at ^ 1] for at in range(len(words)))
    return swapped.strip(b" \0").decode("utf-8", "surrogateescape")


def _vpd_serial(page: str) -> str:
    """The unit serial number of VPD page 80h: a 4-byte header with the length, then the text."""
    raw = page.encode("utf-8", "surrogateescape")
    if len(raw) < 4 or raw[1] != 0x80:
        return ""
    length = int.from_bytes(raw[2:4], "big")
    return raw[4:4 + length].strip(b" \0").decode("utf-8", "surrogateescape")


def _blank(serial: str) -> str:
    """``serial`` without padding; empty when it is nothing but zeros, which is what unset serials look like."""
    text = serial.strip(" \0\n")
    return "" if text.strip("0") == "" else text


def _udev_wwn(block: SysNode) -> str:
    wwn = block.udev.get("ID_WWN_WITH_EXTENSION") or block.udev.get("ID_WWN") or ""
    return f"naa.{wwn[2:]}" if wwn.startswith("0x") else ""


def _wwn(text: str) -> str:
    """A world wide name that is one: NAA 2, 5 or 6, or EUI-64.

    NAA 3 is locally assigned, and cheap USB bridges all carry one with an empty company id: both would make two disks
    one. T10 vendor names are no world wide names.
    """
    scheme, _, digits = text.strip().lower().partition(".")
    if not re.fullmatch(r"[0-9a-f]{16}|[0-9a-f]{24}|[0-9a-f]{32}", digits) or digits.strip("0") == "":
        return ""
    if scheme == "eui":
        return f"eui.{digits}"
    if scheme != "naa" or digits[0] not in "256":
        return ""
    company = digits[4:10] if digits[0] == "2" else digits[1:7]
    return "" if company == "000000" else f"naa.{digits}"


def _usb_device(above: tuple[SysNode, ...]) -> SysNode | None:
    """The nearest USB device (an interface above the disk has no bus number)."""
    return next((node for node in above if node.subsystem == "usb" and "busnum" in node.attrs), None)


def is_external(above: tuple[SysNode, ...]) -> bool:
    """Is one of these nodes a way out of the case: USB, Thunderbolt, a PCI port that firmware calls external, SD."""
    return any(
        node.subsystem in ("usb", "thunderbolt")
        or (node.subsystem == "pci" and node.attr("removable").strip() == "removable")
        or (node.subsystem == "mmc" and node.attr("type").strip() == "SD")
        for node in above
    )


def pci_address(above: tuple[SysNode, ...]) -> str:
    """The address of the nearest PCI function, empty when there is none."""
    return next((node.name for node in above if node.subsystem == "pci"), "")


def _slot(above: tuple[SysNode, ...], scsi: SysNode | None, usb: SysNode | None) -> str:
    if usb is not None:
        lun = scsi.name.rpartition(":")[2] if scsi is not None else "0"
        return f"usb-{usb.name}" if lun == "0" else f"usb-{usb.name} lun {lun}"
    parts = [pci_address(above)]
    if bay := _first(above, "sas_device/bay_identifier"):
        parts.append(f"bay {bay}")
    elif port := _first(above, "ata_port/port_no"):
        parts.append(f"port {port}")
    elif scsi is not None:
        # Without the host number, which counts adapters in the order in which they were found.
        parts.append(f"target {scsi.name.partition(':')[2]}")
    return " ".join(part for part in parts if part)


def _first(above: tuple[SysNode, ...], attribute: str) -> str:
    return next((text for node in above if (text := node.attr(attribute).strip())), "")


def _transport(kind: DeviceKind, above: tuple[SysNode, ...]) -> str:
    if any(node.subsystem == "usb" for node in above):
        return "usb"
    if _on_sas(above):
        return "sas"
    if any("ata_port" in node.classes for node in above):
        return "sata"
    if any(name in node.classes for node in above for name in ("fc_host", "fc_remote_ports")):
        return "fc"
    if any("iscsi_session" in node.classes for node in above):
        return "iscsi"
    if any(node.subsystem == "virtio" for node in above):
        return "virtio"
    return {DeviceKind.MMC: "mmc"}.get(kind, "")


def unescape_udev(text: str) -> str:
    r"""What udev escaped as ``\xNN`` (names of links, ID_*_ENC); bytes that are not UTF-8 become surrogates."""
    pieces = _ESCAPED.split(text)
    raw = b"".join(
        bytes([int(piece, 16)]) if at % 2 else piece.encode("utf-8", "surrogateescape")
        for at, piece in enumerate(pieces)
    )
    return raw.decode("utf-8", "surrogateescape")
