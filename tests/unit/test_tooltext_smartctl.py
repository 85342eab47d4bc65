"""smartctl: ATA, SAS, NVMe behind a bridge, disks that tell nothing, and junk."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.errors import FormatError
from rescue_tui.core.finding import Severity
from rescue_tui.core.tooltext.smartctl import exit_words, parse_smartctl

DATA = Path(__file__).parents[1] / "data/smartctl"
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
        ["smartctl", "exit_status", "messages", "string", "smart_status", "passed", "ata_smart_attributes", "table",
         "id", "raw", "value", "when_failed", "temperature", "current", "scsi_error_counter_log", "read",
         "nvme_smart_health_information_log", "critical_warning"]), inner, max_size=6), max_leaves=16)


def load(name: str) -> bytes:
    return (DATA / f"{name}.json").read_bytes()


def test_a_healthy_ata_disk() -> None:
    health = parse_smartctl(load("ata-healthy"))
    assert (health.ok, health.temperature_celsius, health.power_on_hours) == (True, 31, 22123)
    assert health.percentage_used == 4
    assert (health.error_log_entries, health.available_spare_percent) == (0, 100)
    assert health.findings == ()
    assert not health.unavailable


def test_a_failing_ata_disk() -> None:
    health = parse_smartctl(load("ata-failing"))
    assert (health.ok, health.media_errors, health.error_log_entries, health.unsafe_shutdowns) == (False, 913, 907, 19)
    assert health.temperature_celsius == 39
    assert [finding.code for finding in health.findings] == [
        "attribute-failing", "smart-failing", "reallocated-sectors", "media-errors", "pending-sectors",
        "offline-uncorrectable", "smart-prefail", "smart-error-log"]
    assert "5 Reallocated_Sector_Ct fails now: 1, threshold 36" in health.findings[0].summary
    assert health.findings[4].summary.startswith("1352 sectors")


def test_a_sas_disk() -> None:
    health = parse_smartctl(load("sas"))
    assert (health.ok, health.media_errors, health.temperature_celsius, health.power_on_hours) == (True, 4, 41, 50123)
    assert {finding.code for finding in health.findings} == {"media-errors", "grown-defects"}


def test_an_nvme_disk_behind_a_usb_bridge_has_its_temperature_in_celsius() -> None:
    health = parse_smartctl(load("nvme-behind-usb"))
    assert (health.source, health.ok, health.temperature_celsius, health.media_errors) == ("smartctl", True, 44, 2)
    assert health.spare_threshold_percent == 5
    assert [finding.code for finding in health.findings] == ["media-errors"]


@pytest.mark.parametrize(("name", "words"), [
    ("usb-unknown-bridge", "Unknown USB bridge"), ("no-smart", "gives no SMART data"),
    ("open-failed", "No such device")])
def test_a_disk_that_tells_nothing_says_why(name: str, words: str) -> None:
    health = parse_smartctl(load(name))
    assert words in health.unavailable
    assert health.ok is None


def test_every_bit_of_the_exit_status_has_words() -> None:
    assert len(exit_words(0xFF)) == 8
    assert exit_words(0) == ()
    assert exit_words(0x08) == ("The disk says that it is FAILING.",)


def test_findings_are_ordered_by_severity() -> None:
    severities = [finding.severity for finding in parse_smartctl(load("ata-failing")).findings]
    assert severities == sorted(severities, key=[Severity.ERROR, Severity.WARNING, Severity.INFO].index)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"smartctl": {}}', b"smartctl 7.4"])
def test_other_output_is_a_format_error(text: bytes) -> None:
    with pytest.raises(FormatError):
        parse_smartctl(text)


@given(st.binary(max_size=100) | json_values.map(
    lambda value: json.dumps({"smartctl": {"exit_status": 0}, **(value if isinstance(value, dict) else {})}).encode()))
def test_junk_raises_nothing_but_a_format_error(text: bytes) -> None:
    health = None
    with suppress(FormatError):
        health = parse_smartctl(text)
    assert health is None or health.source == "smartctl"
