"""Raw machines: look-ups, and shapes that are none."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.errors import FormatError
from rescue_tui.core.machine import Machine, SysNode
from tests.support.machines import machine

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["nodes", "attrs", "udev", "holders", "majors", "/devices/a", "7"]), inner, max_size=4),
    max_leaves=12)


def test_numbers_and_devices_are_zero_when_the_text_is_none() -> None:
    node = SysNode("/devices/x/cciss!c0d0", attrs={"size": "12x", "dev": "8:", "diskseq": " 7 ", "ro": "\u0663"})
    assert (node.number("size"), node.number("missing"), node.number("diskseq"), node.number("ro")) == (0, 0, 7, 0)
    assert node.dev == (0, 0)
    assert node.node == "/dev/cciss/c0d0"


def test_kernel_properties() -> None:
    node = SysNode("/devices/x", attrs={"uevent": "PARTN=2\nPARTNAME=a=b\nnonsense\n"})
    assert node.kernel_properties == {"PARTN": "2", "PARTNAME": "a=b"}


def test_ancestors_are_nearest_first() -> None:
    found = machine("single-nvme").ancestors("/devices/pci0000:00/0000:00:06.0/0000:02:00.0/nvme/nvme0/nvme0n1")
    assert [node.name for node in found] == ["nvme0", "0000:02:00.0", "0000:00:06.0", "pci0000:00"]


def test_partitions_are_ordered_by_number_and_belong_to_their_disk() -> None:
    seen = machine("mixed")
    (disk,) = [node for node in seen.whole_disks() if node.name == "sda"]
    assert [node.number("partition") for node in seen.partitions(disk)] == [1, 5]


@pytest.mark.parametrize("plain", [
    None, [], {}, {"nodes": []}, {"nodes": {"/devices/a": 1}}, {"nodes": {}, "majors": {"x": "loop"}},
    {"nodes": {"/devices/a": {"attrs": {"size": 1}}}}, {"nodes": {"/devices/a": {"holders": "x"}}},
    {"nodes": {}, "mountinfo": "\ud800"},
])
def test_another_shape_is_a_format_error(plain: object) -> None:
    with pytest.raises(FormatError):
        Machine.from_plain(plain)


@given(json_values)
def test_junk_raises_nothing_but_a_format_error(plain: object) -> None:
    found = None
    with suppress(FormatError):
        found = Machine.from_plain(plain)
    assert found is None or Machine.from_plain(found.to_plain()) == found
