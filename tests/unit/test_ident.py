"""Identities: stable, printable, and never the same for two devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.ident import DeviceId, disk_id, escape, namespace_id, partition_id, virtual_id
from rescue_tui.core.text import decode, printable

raw_text = st.binary(max_size=60).map(decode)


@given(raw_text, raw_text)
def test_escape_is_injective(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


@pytest.mark.parametrize(("one", "other"), [
    (decode(b"\x9b"), "\x9b"), ("\\x1b", "\x1b"), ("a/b", "a\\x2fb"), ("\u202e", "\\U0000202e"),
    ("S" * 4096, "S" * 4095), ("S" * 201, "S" * 202),
])
def test_texts_that_look_alike_stay_apart(one: str, other: str) -> None:
    assert escape(one) != escape(other)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])) | raw_text)
def test_escaped_text_is_printable_and_short(text: str) -> None:
    shown = escape(text)
    assert printable(shown) == shown
    assert "/" not in shown
    assert len(shown) <= 200


def namespace(**changes: object) -> DeviceId:
    fields: dict[str, object] = {
        "nguid": "00000000-0000-0000-0000-000000000000", "eui64": "00 00 00 00 00 00 00 00", "uuid": "",
        "nqn": "", "model": "M", "serial": "S", "nsid": 1}
    return namespace_id(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("changes", "expected"), [
    ({"nguid": "36344730-5280-3941-0025-384500000001"}, "nvme-nguid:36344730528039410025384500000001"),
    ({"eui64": "00 25 38 45 00 00 00 01"}, "nvme-eui64:0025384500000001"),
    ({"uuid": "0F6D7A5E-31A2-4A4C-8A68-000000000001"}, "nvme-uuid:0f6d7a5e31a24a4c8a68000000000001"),
    ({"nqn": "nqn.2019-08.org.qemu:AAA", "nsid": 7}, "nvme-nqn:nqn.2019-08.org.qemu:AAA/7"),
    ({}, "nvme-serial:M/S/1"),
])
def test_a_namespace_uses_the_best_identifier_that_is_not_zero(changes: dict[str, object], expected: str) -> None:
    assert str(namespace(**changes)) == expected


def test_a_slash_in_a_model_does_not_shift_the_serial() -> None:
    one = disk_id(wwn=None, bus="ata", model="A/B", serial="C", path="p")
    assert one != disk_id(wwn=None, bus="ata", model="A", serial="B/C", path="p")


def test_only_a_disk_without_serial_is_weak() -> None:
    assert disk_id(wwn=None, bus="virtio", model="", serial=" ", path="0000:00:02.0").is_weak
    assert not disk_id(wwn=None, bus="virtio", model="", serial="x", path="0000:00:02.0").is_weak
    assert str(disk_id(wwn="naa.5000C500AABBCCDD", bus="sas", model="", serial="", path="")) == "wwn:5000c500aabbccdd"


@given(raw_text, st.integers(1, 128))
def test_a_partition_is_parsed_back(name: str, number: int) -> None:
    identity = partition_id(virtual_id("loop", f"/tmp/{name}"), number)
    assert DeviceId.parse(str(identity)) == identity


def test_the_slug_of_a_hostile_identity_is_a_plain_file_name() -> None:
    slug = virtual_id("loop", "/../\x1b[31m/" + "x" * 4096).slug()
    assert slug.replace("-", "").replace(".", "").replace("_", "").isalnum()
    assert len(slug) <= 100
