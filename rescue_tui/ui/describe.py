"""All that is known of one disk as lines for the detail screen. Pure; every value passes through `Safe` here."""

from __future__ import annotations

from rich.text import Text

from rescue_tui.core.access import Role
from rescue_tui.core.device import Disk, Health, Mount, Namespace, Partition, Signature
from rescue_tui.core.finding import Finding
from rescue_tui.core.text import human_bytes
from rescue_tui.ui.safe import Safe
from rescue_tui.ui.words import health_style, health_word, role_style, role_word

_NAME_WIDTH = 14


class Page:
    """Collects headings, name-value lines and sentences into one `Text`."""

    def __init__(self, safe: Safe) -> None:
        self.safe = safe
        self._lines: list[Text] = []

    def head(self, words: str) -> None:
        """A heading, with an empty line before it."""
        if self._lines:
            self._lines.append(Text())
        self._lines.append(Text(words, style="bold underline"))

    def pair(self, name: str, value: str, style: str = "") -> None:
        """``name  value``; left out when there is no value."""
        if value:
            self._lines.append(Text(f"{name:<{_NAME_WIDTH}} ").append_text(self.safe.text(value, style)))

    def say(self, sentence: str, style: str = "") -> None:
        """A line by itself."""
        self._lines.append(self.safe.text(sentence, style, None))

    def block(self, lines: str) -> None:
        """Text of several lines (what a tool printed)."""
        self._lines.append(self.safe.block(lines))

    def add(self, text: Text) -> None:
        """Text that is safe already."""
        self._lines.append(text)

    def finding(self, finding: Finding) -> None:
        """The severity in words first, the evidence below."""
        self.say(f"{finding.severity.value.upper()}: {finding.summary}",
                 {"error": "bold red", "warning": "bold yellow"}.get(finding.severity.value, ""))
        if finding.evidence:
            self.block("\n".join(f"    {line}" for line in finding.evidence.splitlines()))

    def text(self) -> Text:
        """The page."""
        return Text("\n").join(self._lines)


def disk_page(safe: Safe, disk: Disk, role: Role, health: Health | None) -> Text:
    """The detail page of one disk."""
    page = Page(safe)
    page.head("What it is")
    page.pair("Node", disk.node)
    page.pair("Model", disk.model)
    page.pair("Serial", disk.serial or "(none)")
    page.pair("Size", f"{human_bytes(disk.size_bytes)} ({disk.size_bytes} bytes)")
    page.pair("Role", f"{role_word(role)}: {role.reason}", role_style(role))
    page.pair("Writes", "refused by the kernel (read-only)" if disk.read_only else "possible")
    page.pair("Identity", f"{disk.id}{'  (weak: bound to the slot)' if disk.id.is_weak else ''}")
    page.pair("Kind", f"{disk.kind.value}{f', {disk.transport}' if disk.transport else ''}, "
                      f"{'external' if disk.external else 'internal'}{', removable' if disk.removable else ''}")
    page.pair("Firmware", disk.firmware)
    page.pair("Sectors", f"{disk.logical_sector_bytes} bytes logical, {disk.physical_sector_bytes} physical")
    page.pair("Slot", disk.slot)
    page.pair("WWN", disk.wwn)
    page.pair("Backing file", disk.backing_file)
    if disk.namespace is not None:
        _namespace(page, disk.namespace)
    _content(page, disk)
    _health(page, health)
    page.head("In use by")
    _uses(page, disk)
    if disk.links:
        page.head("Names")
        for link in disk.links:
            page.say(link)
    return page.text()


def _namespace(page: Page, space: Namespace) -> None:
    page.head("NVMe")
    page.pair("Namespace", f"nsid {space.nsid}, LBA format {space.lba_format.data_bytes} + "
                           f"{space.lba_format.metadata_bytes} bytes")
    page.pair("NGUID", space.nguid)
    page.pair("EUI-64", space.eui64)
    page.pair("UUID", space.uuid)
    page.pair("Subsystem", f"{space.subsystem.name} {space.subsystem.nqn}")
    for each in space.subsystem.controllers:
        page.pair("Controller", f"{each.name} {each.transport} {each.address} {each.state}"
                                f"{f' slot {each.pci_slot}' if each.pci_slot else ''}")
    for path in space.paths:
        page.pair("Path", path)


def _content(page: Page, disk: Disk) -> None:
    page.head("What is on it (every signature found)")
    for signature in disk.signatures:
        page.pair("Whole disk", _signature(signature))
    for part in disk.partitions:
        page.pair(f"Partition {part.number}", _partition(part))
        for signature in part.signatures:
            page.pair("", _signature(signature))
        if not part.signatures:
            page.pair("", "no signature")
    for finding in disk.findings:
        page.finding(finding)
    if disk.is_blank:
        page.say("Blank: neither a partition nor a signature. Old data may still be there.")


def _signature(signature: Signature) -> str:
    named = [f"{name} {value}" for name, value in
             (("label", signature.label), ("uuid", signature.uuid), ("version", signature.version)) if value]
    return ", ".join([f"{signature.kind} ({signature.usage}) at byte {signature.offset_bytes}", *named])


def _partition(part: Partition) -> str:
    return (f"{part.node}  {human_bytes(part.size_bytes)} at byte {part.start_bytes}"
            f"{f'  name {part.name}' if part.name else ''}{f'  type {part.type}' if part.type else ''}"
            f"{'  read-only' if part.read_only else '  WRITABLE'}")


def _health(page: Page, health: Health | None) -> None:
    page.head("Health")
    if health is None:
        page.say("Being read ...")
        return
    page.pair("Verdict", health_word(health), health_style(health))
    if health.unavailable:
        page.say(health.unavailable)
    page.pair("Source", health.source)
    figures = (
        ("Critical", None if health.critical_warning is None else f"0x{health.critical_warning:02x}", ""),
        ("Temperature", health.temperature_celsius, " C"),
        ("Spare", health.available_spare_percent, " %"),
        ("Spare limit", health.spare_threshold_percent, " %"),
        ("Used", health.percentage_used, " %"),
        ("Media errors", health.media_errors, ""),
        ("Error entries", health.error_log_entries, ""),
        ("Powered on", health.power_on_hours, " h"),
        ("Power losses", health.unsafe_shutdowns, ""),
    )
    for name, figure, unit in figures:
        if figure is not None:
            page.pair(name, f"{figure}{unit}")
    for finding in health.findings:
        page.finding(finding)
    if health.errors:
        page.head("Error log, newest first")
        for entry in health.errors:
            page.say(f"#{entry.error_count} LBA {entry.lba} nsid {entry.nsid} status 0x{entry.status_field:04x} "
                     f"{entry.status_text}")


def _uses(page: Page, disk: Disk) -> None:
    for name in disk.all_holders:
        page.pair("Holder", name)
    for name in disk.slaves:
        page.pair("Built on", name)
    for mount in disk.all_mounts:
        page.pair("Mounted", _mount(mount))
    if not (disk.all_holders or disk.all_mounts or disk.slaves):
        page.say("Nothing: no holder, not mounted.")


def _mount(mount: Mount) -> str:
    return f"{mount.target} ({mount.filesystem}, {'READ-WRITE' if mount.writable else 'read-only'})"
