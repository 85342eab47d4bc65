"""nvme-cli as a reader: log pages and Identify data of a controller, as JSON. Source: nvme-smart-log(1) and others."""

from __future__ import annotations

from rescue_tui.core.command import Command

DEADLINE_SECONDS = 20.0
ERROR_LOG_ENTRIES = 256


def smart_log_command(device: str) -> Command:
    """SMART / health log of the whole controller (log page 02h)."""
    return Command(("nvme", "smart-log", device, "--output-format=json"), DEADLINE_SECONDS)


def error_log_command(device: str) -> Command:
    """Error information log (log page 01h); nvme-cli cuts the count to what the controller keeps."""
    return Command(("nvme", "error-log", device, f"--log-entries={ERROR_LOG_ENTRIES}", "--output-format=json"),
                   DEADLINE_SECONDS)


def id_ctrl_command(device: str) -> Command:
    """Identify Controller: limits, capabilities, firmware."""
    return Command(("nvme", "id-ctrl", device, "--output-format=json"), DEADLINE_SECONDS)


def id_ns_command(device: str, nsid: int) -> Command:
    """Identify Namespace: LBA formats, which of them is in use, identifiers."""
    return Command(("nvme", "id-ns", device, f"--namespace-id={nsid}", "--output-format=json"), DEADLINE_SECONDS)
