"""nvme-cli: both spellings, words for what is wrong, and junk."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.device import Health, LbaFormat
from rescue_tui.core.errors import FormatError
from rescue_tui.core.finding import Severity
from rescue_tui.core.tooltext import nvme
from rescue_tui.core.tooltext.nvme import TemperatureLimits, findings_of

DATA = Path(__file__).parents[1] / "data/nvme"
PARSERS: list[Callable[[bytes], object]] = [
    nvme.parse_smart_log, nvme.parse_error_log, nvme.parse_temperature_limits, nvme.parse_lba_format]
LIMITS = TemperatureLimits(80, 85)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.from_regex(r"[0-9]{1,45}"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
        ["critical_warning", "temperature", "avail_spare", "errors", "status_field", "error_count", "lbafs", "flbas",
         "ds", "ms", "in_use", "cctemp", "value"]), inner, max_size=6), max_leaves=12)


def load(name: str) -> bytes:
    return (DATA / f"{name}.json").read_bytes()


def codes(health: Health, limits: TemperatureLimits = LIMITS) -> list[str]:
    return [finding.code for finding in findings_of(health, limits)]


def test_a_healthy_disk() -> None:
    health = nvme.parse_smart_log(load("smart-log-2.3-healthy"))
    assert health == Health(
        source="nvme", ok=True, critical_warning=0, temperature_celsius=37, available_spare_percent=100,
        spare_threshold_percent=10, percentage_used=3, media_errors=0, error_log_entries=12, power_on_hours=17321,
        unsafe_shutdowns=41)
    assert codes(health) == []


def test_a_dying_disk_says_all_that_is_wrong_in_words() -> None:
    health = nvme.parse_smart_log(load("smart-log-2.3-dying"))
    health = replace(health, errors=nvme.parse_error_log(load("error-log-2.3")))
    findings = findings_of(health, LIMITS)
    assert health.ok is False
    assert [finding.code for finding in findings] == [
        "spare-low", "reliability-degraded", "read-only-mode", "media-errors", "temperature-critical", "worn-out",
        "read-errors-logged"]
    assert "4711 times" in findings[3].summary
    assert "86 C" in findings[4].summary
    assert "LBA 123464, 123456" in findings[6].summary


def test_the_newer_spelling_reads_alike() -> None:
    health = nvme.parse_smart_log(load("smart-log-2.13-verbose"))
    assert (health.critical_warning, health.media_errors, health.power_on_hours) == (4, 1 << 64, 17321)
    assert codes(health) == ["reliability-degraded", "media-errors"]


@pytest.mark.parametrize(("warning", "code"), [
    (0x01, "spare-low"), (0x02, "temperature"), (0x04, "reliability-degraded"), (0x08, "read-only-mode"),
    (0x10, "backup-failed"), (0x20, "memory-region-unreliable"), (0x40, "critical-warning")])
def test_every_warning_bit_has_a_name(warning: int, code: str) -> None:
    (finding,) = findings_of(Health(critical_warning=warning), TemperatureLimits())
    assert (finding.code, finding.severity) == (code, Severity.ERROR)


@pytest.mark.parametrize(("health", "code"), [
    (Health(available_spare_percent=9, spare_threshold_percent=10), "spare-low"),
    (Health(percentage_used=100), "worn-out"), (Health(temperature_celsius=80), "temperature-high"),
    (Health(temperature_celsius=85), "temperature-critical"), (Health(media_errors=1), "media-errors")])
def test_limits(health: Health, code: str) -> None:
    assert codes(health) == [code]


@pytest.mark.parametrize("health", [
    Health(), Health(available_spare_percent=10, spare_threshold_percent=10), Health(percentage_used=99),
    Health(temperature_celsius=79), Health(media_errors=0)])
def test_below_the_limits_nothing_is_said(health: Health) -> None:
    assert codes(health) == []


def test_the_error_log_is_newest_first_and_without_unused_entries() -> None:
    entries = nvme.parse_error_log(load("error-log-2.3"))
    assert [(entry.error_count, entry.lba, entry.status_text) for entry in entries] == [
        (5120, 123464, "unrecovered read error"), (5119, 123456, "unrecovered read error"),
        (5118, 0, "invalid field")]
    assert nvme.parse_error_log(load("error-log-empty")) == ()


def test_newer_and_older_error_logs() -> None:
    (new,) = nvme.parse_error_log(load("error-log-2.13"))
    assert (new.status_text, new.command_id, new.lba) == ("unrecovered read error", 4096, (1 << 64) - 1)
    (old,) = nvme.parse_error_log(load("error-log-1.x"))
    assert (old.status_field, old.status_text) == (0x281, "unrecovered read error")


@pytest.mark.parametrize(("status", "text"), [
    (0x0000, "success"), (0x0020, "namespace is write protected"), (0x00C0, "generic status 0xc0"),
    (0x0109, "invalid log page"), (0x0280, "write fault"), (0x0370, "host path error"),
    (0x0742, "vendor specific status 0x42"), (0x0501, "status type 5 code 0x01")])
def test_status_words(status: int, text: str) -> None:
    assert nvme.status_text(status) == text


def test_limits_come_in_kelvin() -> None:
    assert nvme.parse_temperature_limits(load("id-ctrl-2.3")) == TemperatureLimits(80, 85)
    assert nvme.parse_temperature_limits(b'{"cctemp": 0}') == TemperatureLimits()


def test_the_lba_format_in_use() -> None:
    assert nvme.parse_lba_format(load("id-ns-2.3")) == LbaFormat(4096, 8)
    assert nvme.parse_lba_format(load("id-ns-2.13")) == LbaFormat(4096, 64)
    formats = [{"ms": 0, "ds": 9}] * 16 + [{"ms": 0, "ds": 12}]
    assert nvme.parse_lba_format(json.dumps({"flbas": 0x20, "lbafs": formats}).encode()) == LbaFormat(4096)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"errors": 1}', b"not json"])
@pytest.mark.parametrize("parser", [nvme.parse_smart_log, nvme.parse_error_log, nvme.parse_lba_format])
def test_other_output_is_a_format_error(parser: Callable[[bytes], object], text: bytes) -> None:
    with pytest.raises(FormatError):
        parser(text)


@given(st.binary(max_size=100) | json_values.map(lambda value: json.dumps(value).encode()))
def test_junk_raises_nothing_but_a_format_error(text: bytes) -> None:
    outcomes = []
    for parser in PARSERS:
        with suppress(FormatError):
            outcomes.append(parser(text))
    assert all(outcome is not None for outcome in outcomes)
