"""What nvme-cli prints as JSON: SMART log, error log, Identify Controller, Identify Namespace.

Debian 12 has nvme-cli 2.3, Debian 13 has 2.13: fields are spelled alike there, but counters come as numbers, as
texts or as floating-point numbers, and bit fields as numbers or as objects. smartctl's spellings are accepted too.
Source: NVM Express Base Specification 2.0c, 5.16.1.2 (error information), 5.16.1.3 (SMART), figure 101 (status values).
"""

from __future__ import annotations

from dataclasses import dataclass

from rescue_tui.core.device import ErrorLogEntry, Health, LbaFormat
from rescue_tui.core.errors import FormatError
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.text import printable
from rescue_tui.core.tooltext.jsontext import load_object, number, objects, table

_KELVIN = 273
CRITICAL_WARNINGS: tuple[tuple[int, str, str], ...] = (
    (0x01, "spare-low", "The available spare is below its threshold: the disk is running out of replacement blocks."),
    (0x02, "temperature", "The temperature is outside the limits of the disk."),
    (0x04, "reliability-degraded", "The disk says that it is unreliable, from media or internal errors."),
    (0x08, "read-only-mode", "The disk has put itself into read-only mode. It can still be imaged."),
    (0x10, "backup-failed", "The volatile memory backup of the disk has failed."),
    (0x20, "memory-region-unreliable", "The persistent memory region is read-only or unreliable."),
)
_GENERIC = {
    0x00: "success", 0x01: "invalid opcode", 0x02: "invalid field", 0x04: "data transfer error",
    0x05: "aborted by power loss", 0x06: "internal error", 0x07: "abort requested", 0x0B: "invalid namespace or format",
    0x0C: "command sequence error", 0x20: "namespace is write protected", 0x21: "command interrupted",
    0x22: "transient transport error", 0x80: "LBA out of range", 0x81: "capacity exceeded", 0x82: "namespace not ready",
    0x84: "format in progress",
}
_COMMAND_SPECIFIC = {0x09: "invalid log page", 0x0B: "firmware needs a reset", 0x80: "conflicting attributes",
                     0x81: "invalid protection information", 0x82: "write to a read-only range"}
_MEDIA = {
    0x80: "write fault", 0x81: "unrecovered read error", 0x82: "guard check error", 0x83: "application tag check error",
    0x84: "reference tag check error", 0x85: "compare failure", 0x86: "access denied",
    0x87: "deallocated or unwritten block", 0x88: "storage tag check error",
}
_PATH = {0x00: "internal path error", 0x01: "path persistently lost", 0x02: "path inaccessible",
         0x03: "path in transition", 0x60: "controller path error", 0x70: "host path error", 0x71: "aborted by host"}
_TYPES: tuple[tuple[str, dict[int, str]], ...] = (
    ("generic", _GENERIC), ("command specific", _COMMAND_SPECIFIC), ("media", _MEDIA), ("path", _PATH))


@dataclass(frozen=True, slots=True)
class TemperatureLimits:
    """Warning and critical composite temperature in degrees Celsius; None when the controller names none."""

    warning_celsius: int | None = None
    critical_celsius: int | None = None


def status_text(status: int) -> str:
    """A status field in words: bits 7:0 are the status code, 10:8 its type, 13 "more", 14 "do not retry"."""
    code, kind = status & 0xFF, status >> 8 & 0x7
    if kind >= len(_TYPES):
        return f"vendor specific status {code:#04x}" if kind == 7 else f"status type {kind} code {code:#04x}"
    name, codes = _TYPES[kind]
    return codes.get(code, f"{name} status {code:#04x}")


def parse_error_log(output: bytes) -> tuple[ErrorLogEntry, ...]:
    """Used entries of the error log, newest first. FormatError when the output is something else."""
    top = load_object(output, "nvme error-log")
    if not isinstance(top.get("errors"), list):
        raise FormatError("nvme error-log printed JSON without errors.", "Its output is below.", printable(output))
    entries = [_error(item) for item in objects(top["errors"])]
    return tuple(sorted((entry for entry in entries if entry.error_count), key=lambda entry: -entry.error_count))


def _error(item: dict[str, object]) -> ErrorLogEntry:
    status = number(item, "status_field") or 0
    if "phase_tag" not in item:
        status >>= 1  # before 2.0 the phase tag was printed as bit 0 of the status
    return ErrorLogEntry(
        error_count=number(item, "error_count") or 0, command_id=number(item, "cmdid", "command_id") or 0,
        status_field=status, status_text=status_text(status), lba=number(item, "lba") or 0,
        nsid=number(item, "nsid") or 0)


def parse_temperature_limits(output: bytes) -> TemperatureLimits:
    """Limits from `nvme id-ctrl`, where they are in kelvin. FormatError when the output is something else."""
    top = load_object(output, "nvme id-ctrl")
    return TemperatureLimits(*(
        kelvin - _KELVIN if (kelvin := number(top, name)) else None for name in ("wctemp", "cctemp")))


def parse_lba_format(output: bytes) -> LbaFormat:
    """The LBA format in use from `nvme id-ns`. FormatError when the output names none."""
    top = load_object(output, "nvme id-ns")
    formats = objects(top.get("lbafs"))
    flbas = number(top, "flbas") or 0
    # Bits 6:5 of FLBAS are bits 5:4 of the index; bit 4 tells where metadata travels.
    index = flbas & 0x0F | (flbas & 0x60) >> 1
    used = [item for item in formats if number(item, "in_use") == 1] or formats[index:index + 1]
    shift = number(used[0], "ds") if used else None
    if shift is None or not 9 <= shift <= 32:
        raise FormatError("nvme id-ns names no LBA format in use.", "Its output is below.", printable(output))
    return LbaFormat(1 << shift, number(used[0], "ms") or 0)


def parse_smart_log(output: bytes) -> Health:
    """The SMART log (page 02h) as `Health`, without findings; see `findings_of`. FormatError for anything else."""
    return health_from_log(load_object(output, "nvme smart-log"), "nvme", printable(output))


def health_from_log(log: dict[str, object], source: str, shown: str) -> Health:
    """As `parse_smart_log` for a log that is a part of another tool's JSON; ``shown`` is the evidence of an error."""
    warning = number(log, "critical_warning")
    if warning is None:
        raise FormatError("A SMART log has no critical warning field.", "The output is below.", shown)
    temperature = number(log, "temperature")
    if temperature is not None and source == "nvme":
        temperature -= _KELVIN  # nvme-cli prints kelvin, smartctl degrees Celsius
    return Health(
        source=source, ok=warning == 0, critical_warning=warning, temperature_celsius=temperature,
        available_spare_percent=number(log, "avail_spare", "available_spare"),
        spare_threshold_percent=number(log, "spare_thresh", "available_spare_threshold"),
        percentage_used=number(log, "percent_used", "percentage_used"),
        media_errors=number(log, "media_errors"), error_log_entries=number(log, "num_err_log_entries"),
        power_on_hours=number(log, "power_on_hours"), unsafe_shutdowns=number(log, "unsafe_shutdowns"))


def findings_of(health: Health, limits: TemperatureLimits) -> tuple[Finding, ...]:
    """What an NVMe disk's health means, in plain words, the worst first."""
    found: list[Finding] = []
    warning = health.critical_warning or 0
    found += [Finding(Severity.ERROR, code, summary, f"critical_warning={warning:#04x}")
              for bit, code, summary in CRITICAL_WARNINGS if warning & bit]
    if warning & ~0x3F:
        found.append(Finding(Severity.ERROR, "critical-warning", "The disk raised a warning that has no name yet.",
                             f"critical_warning={warning:#04x}"))
    if health.media_errors:
        found.append(Finding(
            Severity.WARNING, "media-errors",
            f"{health.media_errors} times the disk could not give back data as it was written: expect bad sectors.",
            f"media_errors={health.media_errors}"))
    spare, threshold = health.available_spare_percent, health.spare_threshold_percent
    if spare is not None and threshold is not None and spare < threshold and not warning & 0x01:
        found.append(Finding(Severity.WARNING, "spare-low",
                             f"Only {spare} % spare is left, the threshold is {threshold} %."))
    found += _temperature(health.temperature_celsius, limits)
    used = health.percentage_used
    if used is not None and used >= 100:
        found.append(Finding(Severity.WARNING, "worn-out",
                             f"The disk has used {used} % of the write endurance that it is rated for."))
    unreadable = [entry for entry in health.errors if entry.status_field & 0x7FF in (0x281, 0x282, 0x283, 0x284)]
    if unreadable:
        blocks = ", ".join(str(entry.lba) for entry in unreadable[:5])
        found.append(Finding(Severity.WARNING, "read-errors-logged",
                             f"The error log names {len(unreadable)} failed reads, the newest at LBA {blocks}."))
    return tuple(found)


def _temperature(celsius: int | None, limits: TemperatureLimits) -> list[Finding]:
    if celsius is None:
        return []
    if limits.critical_celsius is not None and celsius >= limits.critical_celsius:
        return [Finding(Severity.ERROR, "temperature-critical",
                        f"The disk is at {celsius} C, its critical limit is {limits.critical_celsius} C: cool it now.")]
    if limits.warning_celsius is not None and celsius >= limits.warning_celsius:
        return [Finding(Severity.WARNING, "temperature-high",
                        f"The disk is at {celsius} C, it warns from {limits.warning_celsius} C on.")]
    return []


def smart_table(top: dict[str, object]) -> dict[str, object]:
    """The NVMe SMART log inside of smartctl's JSON, empty when there is none."""
    return table(top.get("nvme_smart_health_information_log"))
