"""What `smartctl --json=c -a` prints, for ATA, SCSI and NVMe behind a bridge, and what its exit status says.

Source: smartctl(8), section EXIT STATUS; the JSON is smartmontools 7.3 (Debian 12) to 7.4 (Debian 13).
"""

from __future__ import annotations

import re
from dataclasses import replace

from rescue_tui.core.device import Health
from rescue_tui.core.errors import FormatError
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.text import printable
from rescue_tui.core.tooltext.jsontext import load_object, number, objects, table, text
from rescue_tui.core.tooltext.nvme import TemperatureLimits, findings_of, health_from_log, smart_table

EXIT_BITS: tuple[tuple[int, Severity, str, str], ...] = (
    (0x01, Severity.INFO, "smart-command-line", "smartctl did not understand its command line."),
    (0x02, Severity.WARNING, "smart-open-failed", "smartctl could not open the disk or read its identity."),
    (0x04, Severity.INFO, "smart-command-failed", "A SMART command failed, or a checksum in the SMART data is wrong."),
    (0x08, Severity.ERROR, "smart-failing", "The disk says that it is FAILING."),
    (0x10, Severity.WARNING, "smart-prefail", "A pre-failure attribute is at or below its threshold."),
    (0x20, Severity.INFO, "smart-failed-in-past", "An attribute was at or below its threshold in the past."),
    (0x40, Severity.INFO, "smart-error-log", "The error log of the disk has entries."),
    (0x80, Severity.WARNING, "smart-self-test-failed", "A self-test of the disk has failed."),
)
# Attributes that count what an imaging run will meet. Source: the names in smartmontools' drive database.
_COUNTERS: tuple[tuple[int, str, str], ...] = (
    (5, "reallocated-sectors", "{} sectors have been replaced by spare ones."),
    (187, "media-errors", "{} reads could not be corrected: expect bad sectors."),
    (197, "pending-sectors", "{} sectors wait to be read once more or replaced: expect bad sectors."),
    (198, "offline-uncorrectable", "{} sectors could not be read by the disk's own scan: expect bad sectors."),
)
_LEADING = re.compile(r"[0-9]{1,15}")


def parse_smartctl(output: bytes) -> Health:
    """The health of a disk with its findings. FormatError when the output is no smartctl JSON.

    A disk that can't be asked gives ``unavailable``.
    """
    top = load_object(output, "smartctl")
    program = table(top.get("smartctl"))
    status = number(program, "exit_status")
    if status is None:
        raise FormatError("smartctl printed JSON without its exit status.", "Its output is below.", printable(output))
    messages = [message for item in objects(program.get("messages")) if (message := text(item, "string"))]
    passed = table(top.get("smart_status")).get("passed")
    verdict = passed if isinstance(passed, bool) else None
    if log := smart_table(top):
        health = health_from_log(log, "smartctl", printable(output))
        return replace(health, ok=health.ok if verdict is None else verdict and health.ok,
                       findings=(*findings_of(health, TemperatureLimits()), *_bits(status, messages)))
    attributes = objects(table(top.get("ata_smart_attributes")).get("table"))
    scsi = table(top.get("scsi_error_counter_log"))
    if verdict is None and not attributes and not scsi:
        why = " ".join(messages) or "The disk gives no SMART data."
        return Health(source="smartctl", unavailable=printable(why))
    temperature = table(top.get("temperature"))
    spare = table(top.get("spare_available"))
    health = Health(
        source="smartctl", ok=verdict, temperature_celsius=number(temperature, "current"),
        available_spare_percent=number(spare, "current_percent"),
        spare_threshold_percent=number(spare, "threshold_percent"),
        percentage_used=(number(table(top.get("endurance_used")), "current_percent")
                         or number(top, "scsi_percentage_used_endurance_indicator")),
        media_errors=_media_errors(attributes, scsi), error_log_entries=_logged(top),
        power_on_hours=number(table(top.get("power_on_time")), "hours"), unsafe_shutdowns=_raw(attributes, 192))
    found = [*_attribute_findings(attributes), *_scsi_findings(top, scsi), *_bits(status, messages)]
    limits = TemperatureLimits(critical_celsius=number(temperature, "drive_trip"))
    found += findings_of(replace(health, media_errors=None), limits)
    return replace(health, findings=tuple(sorted(found, key=lambda item: list(Severity)[::-1].index(item.severity))))


def exit_words(status: int) -> tuple[str, ...]:
    """What each set bit of smartctl's exit status says."""
    return tuple(words for bit, _, _, words in EXIT_BITS if status & bit)


def _bits(status: int, messages: list[str]) -> list[Finding]:
    evidence = printable(" ".join(messages))
    return [Finding(severity, code, words, evidence if bit <= 0x04 else f"exit status {status}")
            for bit, severity, code, words in EXIT_BITS if status & bit]


def _raw(attributes: list[dict[str, object]], wanted: int) -> int | None:
    """The raw value of an attribute: the number that its text begins with, since makers pack more into the 48 bits."""
    for item in attributes:
        if number(item, "id") == wanted:
            raw = table(item.get("raw"))
            leading = _LEADING.match(text(raw, "string").strip())
            return int(leading[0]) if leading else number(raw, "value")
    return None


def _attribute_findings(attributes: list[dict[str, object]]) -> list[Finding]:
    found: list[Finding] = []
    for item in attributes:
        name, value = text(item, "name"), number(item, "value")
        threshold = number(item, "thresh")
        if text(item, "when_failed") == "now":
            label = f"SMART attribute {number(item, 'id')} {name}"
            found.append(Finding(Severity.ERROR, "attribute-failing",
                                 f"{label} fails now: {value}, threshold {threshold}."))
    for identifier, code, words in _COUNTERS:
        if count := _raw(attributes, identifier):
            found.append(Finding(Severity.WARNING, code, words.format(count), f"attribute {identifier}"))
    return found


def _uncorrected(scsi: dict[str, object]) -> int | None:
    counts = [number(table(scsi.get(kind)), "total_uncorrected_errors") for kind in ("read", "write", "verify")]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _media_errors(attributes: list[dict[str, object]], scsi: dict[str, object]) -> int | None:
    return _uncorrected(scsi) if scsi else _raw(attributes, 187)


def _scsi_findings(top: dict[str, object], scsi: dict[str, object]) -> list[Finding]:
    found: list[Finding] = []
    if count := _uncorrected(scsi):
        found.append(Finding(Severity.WARNING, "media-errors",
                             f"{count} errors could not be corrected: expect bad sectors."))
    if grown := number(top, "scsi_grown_defect_list"):
        found.append(Finding(Severity.WARNING, "grown-defects",
                             f"{grown} blocks have gone bad since the disk was made."))
    return found


def _logged(top: dict[str, object]) -> int | None:
    log = table(top.get("ata_smart_error_log"))
    for kind in ("extended", "summary"):
        if (count := number(table(log.get(kind)), "count")) is not None:
            return count
    return None
