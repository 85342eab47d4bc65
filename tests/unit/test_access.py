"""The gate as a table: each reason alone, and what must never happen whatever is plugged in."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescue_tui.core.access import (
    OWN_PARTITION_NAME,
    Access,
    WriteGrant,
    assign_roles,
    confirm_serial,
    decide,
    is_member,
)
from rescue_tui.core.device import (
    SIGNATURES_UNREAD,
    DeviceKind,
    Disk,
    LbaFormat,
    Mount,
    Namespace,
    Partition,
    Signature,
    Subsystem,
)
from rescue_tui.core.errors import PolicyRefusal
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.ident import DeviceId
from rescue_tui.core.record import to_plain
from rescue_tui.core.snapshot import Snapshot

NOW = datetime(2026, 12, 2, 9, 0, tzinfo=UTC)
OWN = ("/run/stasis",)
ESP = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
LINUX = "0fc63daf-8483-4772-8e79-3d69d8477de4"
LONG = "6f2f6b1a-3c58-4f6e-9a47-2b1c7a3d9e10"


def disk(name: str = "sdx", serial: str = "S1", **fields: object) -> Disk:
    """An external, blank USB disk."""
    base = Disk(DeviceId("serial", f"usb/m/{name}"), f"/dev/{name}", (8, len(name) + sum(name.encode()) % 200), 7,
                DeviceKind.USB, "m", serial, "", 1 << 40, 512, 512, True, external=True)
    return replace(base, **fields)  # type: ignore[arg-type]


def part(number: int = 1, **fields: object) -> Partition:
    """A partition with an ext4."""
    base = Partition(DeviceId("serial", f"p{number}"), f"/dev/sdx{number}", (8, number), number, 0, 1 << 39, True,
                     type=LINUX, signatures=(fs("ext4"),))
    return replace(base, **fields)  # type: ignore[arg-type]


def fs(kind: str, uuid: str = "", usage: str = "filesystem") -> Signature:
    """A signature."""
    return Signature(kind, usage, 0, uuid=uuid)


def namespace(nqn: str, nsid: int, name: str = "nvme-subsys0") -> Namespace:
    """An NVMe namespace."""
    return Namespace(nsid, "", "", "", LbaFormat(512), Subsystem(name, nqn, "m", "s", "f"))


def snap(*disks: Disk, boot: str = "") -> Snapshot:
    """A snapshot."""
    return Snapshot(NOW, disks, boot)


def grant_for(one: Disk) -> WriteGrant:
    """A grant in force."""
    return WriteGrant(one.id, one.generation, one.node, one.serial, "2026-12-02T09:00:00.000Z", "t0ken")


SOURCE = disk("nvme0n1", "N1", kind=DeviceKind.NVME, external=False, namespace=namespace("nqn.a", 1),
              signatures=(fs("xfs", LONG),))
INTERNAL_NVME = disk("nvme1n1", "N2", kind=DeviceKind.NVME, external=False,
                     namespace=namespace("nqn.b", 1, "nvme-subsys1"))
SATA = disk("sda", "A1", kind=DeviceKind.ATA, external=False)


@pytest.mark.parametrize(("code", "one"), [
    ("mounted", disk(mounts=(Mount("/mnt", "ext4", ("ro",)),))),
    ("mounted", disk(partitions=(part(mounts=(Mount("/mnt", "ext4", ("ro",)),)),))),
    ("boot-medium", disk(partitions=(part(part_uuid="B007"),))),
    ("boot-medium", disk(mounts=(Mount("/", "ext4", ("rw",)),))),
    ("off-limits", disk(kind=DeviceKind.ZRAM)),
    ("off-limits", disk(kind=DeviceKind.RAM)),
    ("off-limits", disk(kind=DeviceKind.OPTICAL)),
    ("off-limits", disk(kind=DeviceKind.LOOP, backing_file="/run/stasis/destination/x/image.raw")),
    ("off-limits", disk(kind=DeviceKind.LOOP, backing_file="/dev/nvme0n1")),
    ("off-limits", disk(kind=DeviceKind.LOOP)),
    ("stacked", disk(kind=DeviceKind.MD, slaves=("sda", "sdb"))),
    ("stacked", disk(kind=DeviceKind.DM)),
    ("no-medium", disk(size_bytes=0)),
    ("member", disk(signatures=(fs("linux_raid_member", LONG, "raid"),))),
    ("member", disk(partitions=(part(signatures=(fs("LVM2_member", "", "raid"),)),))),
    ("member", disk(signatures=(fs("zfs_member"),))),
    ("member", disk(signatures=(fs("crypto_LUKS", "", "crypto"),))),
    ("member", disk(signatures=(fs("ext4"), fs("bcache", "", "other")))),
    ("member", disk(signatures=(fs("jbd", "", "other"),))),
    ("holders", disk(holders=("md0",))),
    ("holders", disk(partitions=(part(holders=("dm-0",)),))),
    ("shares-uuid", disk(signatures=(fs("xfs", LONG.upper()),))),
    ("weak-identity", disk(serial="", id=DeviceId("path", "pci-1"))),
    ("no-serial", disk(serial="  ")),
    ("no-usable-filesystem", disk(signatures=(fs("apfs"),))),
    ("no-usable-filesystem", disk(signatures=(fs("gpt", "", "partition-table"),))),
    ("no-usable-filesystem", disk(signatures=(fs("swap", "", "other"),))),
    ("signatures-unread", disk(findings=(Finding(Severity.WARNING, SIGNATURES_UNREAD, "hangs"),))),
    ("internal", INTERNAL_NVME),
    ("internal-not-blank", replace(INTERNAL_NVME, signatures=(fs("ext4"),))),
    ("shares-subsystem", replace(INTERNAL_NVME, namespace=namespace("nqn.a", 2, "nvme-subsys0"))),
    ("system-disk", replace(SATA, partitions=(part(1, type=ESP, signatures=(fs("vfat"),)), part(2)))),
    ("system-disk", replace(SATA, partitions=(part(1), part(2, type="0x82", signatures=())))),
    ("system-disk", replace(SATA, partitions=(part(1), part(2, signatures=(fs("swap", "", "other"),))))),
])
def test_each_reason_refuses(code: str, one: Disk) -> None:
    decision = decide(snap(SOURCE, one, boot="b007"), one, own_dirs=OWN)
    assert code in {finding.code for finding in decision.refusals}
    assert all(finding.severity is Severity.ERROR and finding.summary.endswith(".") for finding in decision.refusals)
    assert not decision.allowed


@pytest.mark.parametrize(("one", "internal", "warnings"), [
    (disk(), False, {"needs-format"}),
    (disk(partitions=(part(),)), False, set()),
    (disk(signatures=(fs("xfs", "11111111-3c58-4f6e-9a47-2b1c7a3d9e10"),)), False, set()),
    (disk(partitions=(part(signatures=(fs("exfat", "AA-BB"),)),)), False, {"no-sparse-files"}),
    (disk(partitions=(part(signatures=(fs("vfat", "AA-BB"),)),)), False, {"no-sparse-files", "fat-file-limit"}),
    (disk(partitions=(part(signatures=(fs("ntfs"),)),), rotational=True), False, {"ntfs", "rotational"}),
    (disk(kind=DeviceKind.LOOP, backing_file="/srv/disk.img"), False, {"needs-format"}),
    (disk(partitions=(part(1, type=ESP, signatures=(fs("vfat"),)), part(2))), False,
     {"looks-like-a-system", "no-sparse-files", "fat-file-limit"}),
    (disk(mounts=(Mount("/run/stasis/destination/x", "ext4", ("rw",)),), signatures=(fs("ext4"),)), False, set()),
    (disk(serial="N1"), False, {"needs-format", "serial-not-unique"}),
    (INTERNAL_NVME, True, {"needs-format", "internal-disk"}),
    (replace(INTERNAL_NVME, partitions=(part(name=OWN_PARTITION_NAME),)), True, {"internal-disk"}),
    (replace(SATA, partitions=(part(),)), False, {"internal-disk"}),
    (replace(SATA, partitions=(part(1), part(2, signatures=(fs("swap", "", "other"),)))), True, {"internal-disk"}),
])
def test_what_may_be_granted(one: Disk, internal: bool, warnings: set[str]) -> None:
    decision = decide(snap(SOURCE, one), one, own_dirs=OWN, internal=internal)
    assert decision.refusals == ()
    assert {finding.code for finding in decision.warnings} == warnings


def test_internal_says_yes_to_no_disk_with_foreign_content() -> None:
    one = replace(INTERNAL_NVME, partitions=(part(name="data"),))
    assert "internal-not-blank" in {finding.code for finding in decide(snap(one), one, internal=True).refusals}


def test_a_source_of_this_session_is_refused_and_stays_one() -> None:
    one = disk()
    decision = decide(snap(one), one, session_sources={one.id}, internal=True)
    assert [finding.code for finding in decision.refusals] == ["session-source"]
    roles = assign_roles(snap(one), {one.id: grant_for(one)}, {one.id})
    assert roles[one.id].access is Access.SOURCE


def test_two_disks_with_one_identity_are_both_refused() -> None:
    one, two = disk("sdx"), replace(disk("sdy"), id=disk("sdx").id)
    for each in (one, two):
        assert "duplicate-identity" in {finding.code for finding in decide(snap(one, two), each).refusals}
    roles = assign_roles(snap(one, two), {one.id: grant_for(one)}, ())
    assert roles[one.id].access is Access.SOURCE


def test_a_disk_of_an_older_snapshot_is_gone() -> None:
    one = disk()
    assert "gone" in {finding.code for finding in decide(snap(replace(one, generation=8)), one).refusals}
    assert "gone" in {finding.code for finding in decide(snap(), one).refusals}


def test_copies_of_a_partition_are_told_by_their_partition_uuid() -> None:
    one = disk("sdx", partitions=(part(part_uuid=LONG),))
    two = disk("sdy", "S2", partitions=(part(part_uuid=LONG),))
    assert [finding.code for finding in decide(snap(one, two), one).refusals] == ["shares-uuid"]
    # A DOS table's are 32 bits and a number: no proof.
    short = [replace(each, partitions=(part(part_uuid="1234abcd-01"),)) for each in (one, two)]
    assert decide(snap(*short), short[0]).allowed


def test_the_same_short_volume_id_only_warns() -> None:
    one = disk("sdx", signatures=(fs("exfat", "12-34"),))
    two = disk("sdy", "S2", signatures=(fs("exfat", "12-34"),))
    decision = decide(snap(one, two), one)
    assert decision.allowed
    assert "same-volume-id" in {finding.code for finding in decision.warnings}


def test_unread_neighbours_are_told() -> None:
    other = replace(SOURCE, findings=(Finding(Severity.WARNING, SIGNATURES_UNREAD, "hangs"),))
    codes = {finding.code for finding in decide(snap(other, disk()), disk()).warnings}
    assert "others-unread" in codes


def test_a_sibling_that_is_itself_granted_is_no_reason() -> None:
    one = replace(INTERNAL_NVME, namespace=namespace("nqn.b", 1))
    two = replace(INTERNAL_NVME, id=DeviceId("nvme-nguid", "2"), node="/dev/nvme1n2", namespace=namespace("nqn.b", 2))
    assert not decide(snap(one, two), one, internal=True).allowed
    assert decide(snap(one, two), one, internal=True, grants={two.id: grant_for(two)}).allowed


def test_a_granted_disk_passes_again_with_what_was_written_since() -> None:
    one = replace(INTERNAL_NVME, partitions=(part(),))
    assert not decide(snap(one), one).allowed
    assert decide(snap(one), one, grants={one.id: grant_for(one)}).allowed
    assert not decide(snap(one), one, grants={one.id: replace(grant_for(one), generation=6)}).allowed


def test_roles_say_why() -> None:
    boot = disk("sdb", "B", partitions=(part(part_uuid="B007"),))
    ours = disk("loop9", "L", kind=DeviceKind.LOOP, backing_file="/run/stasis/x")
    granted, stale = disk("sdx"), disk("sdy", "Y")
    array = disk("md0", "", kind=DeviceKind.MD, slaves=("sda",))
    roles = assign_roles(
        snap(SOURCE, boot, ours, granted, stale, array, boot="b007"),
        {granted.id: grant_for(granted), stale.id: replace(grant_for(stale), generation=1)}, (), OWN)
    assert {key.value.rpartition("/")[2]: role.access for key, role in roles.items()} == {
        "nvme0n1": Access.SOURCE, "sdb": Access.BOOT_MEDIUM, "loop9": Access.OFF_LIMITS, "sdx": Access.DESTINATION,
        "sdy": Access.SOURCE, "md0": Access.SOURCE}
    assert all(role.reason.endswith(".") for role in roles.values())
    assert "void" in roles[stale.id].reason
    assert "Stacked on sda" in roles[array.id].reason


@pytest.mark.parametrize(("typed", "how"), [
    ("", "Nothing was typed"), ("AB-1 ", "blank too many"), (" AB-1", "blank too many"), ("AB-1\n", "blank too many"),
    ("ab-1", "Capital"), ("AB-12", "It has 4 characters, 5 were typed"), ("AB-2", "one character differs"),
])
def test_the_serial_must_be_exact(typed: str, how: str) -> None:
    one = disk(serial="AB-1")
    with pytest.raises(PolicyRefusal, match=how) as refusal:
        confirm_serial(one, typed)
    assert "AB-1" not in f"{refusal.value} {refusal.value.evidence}"


def test_the_serial_is_the_one_that_is_shown() -> None:
    confirm_serial(disk(serial="AB-1"), "AB-1")
    confirm_serial(disk(serial="a\x1b[1m"), "a\\x1b[1m")
    for serial in ("", " "):
        with pytest.raises(PolicyRefusal):
            confirm_serial(disk(serial=serial), "")


def test_a_grant_shows_its_token_nowhere() -> None:
    grant = grant_for(disk())
    assert "t0ken" not in repr(grant)
    assert "t0ken" not in str(to_plain({"grant": grant}))


def test_members_are_known_by_usage_and_by_name() -> None:
    assert is_member(fs("anything", usage="raid"))
    assert is_member(fs("VMFS_volume_member"))
    assert not is_member(fs("ext4"))
    assert not is_member(fs("gpt", usage="partition-table"))


KINDS = st.sampled_from(list(DeviceKind))
SIGNATURES = st.builds(
    Signature, st.sampled_from(["ext4", "xfs", "vfat", "zfs_member", "linux_raid_member", "swap", "gpt", "btrfs"]),
    st.sampled_from(["filesystem", "raid", "crypto", "partition-table", "other"]), st.just(0),
    uuid=st.sampled_from(["", LONG, "11111111-3c58-4f6e-9a47-2b1c7a3d9e10", "AA-BB"]))
PARTITIONS = st.builds(
    lambda number, kind, sigs, name: part(number, type=kind, signatures=tuple(sigs), name=name),
    st.integers(1, 4), st.sampled_from([ESP, LINUX, "0x82", ""]), st.lists(SIGNATURES, max_size=2),
    st.sampled_from(["", OWN_PARTITION_NAME]))
DISKS = st.builds(
    lambda number, twin, kind, external, serial, sigs, parts, mounted, generation: disk(
        f"sd{number}", serial, id=DeviceId("serial", str(twin)), kind=kind, external=external,
        signatures=tuple(sigs), partitions=tuple(parts), generation=generation,
        mounts=(Mount("/mnt", "ext4", ("rw",)),) if mounted else ()),
    st.integers(0, 9), st.integers(0, 5), KINDS, st.booleans(), st.sampled_from(["", " ", "S1", "S2"]),
    st.lists(SIGNATURES, max_size=2), st.lists(PARTITIONS, max_size=3), st.booleans(), st.integers(1, 3))


@given(st.lists(DISKS, min_size=1, max_size=6), st.sets(st.integers(0, 5)), st.booleans(), st.booleans())
def test_a_source_is_never_granted(disks: list[Disk], imaged: set[int], internal: bool, stale: bool) -> None:
    sources = {DeviceId("serial", str(number)) for number in imaged}
    grants = {one.id: grant_for(one) for one in disks} if stale else {}
    snapshot = snap(*disks)
    roles = assign_roles(snapshot, grants, sources)
    for one in disks:
        decision = decide(snapshot, one, session_sources=sources, internal=internal)
        same = [other for other in disks if other.id == one.id]
        if decision.allowed:
            assert one.id not in sources
            assert len(same) == 1
            assert one.serial.strip()
            assert not one.mounts
            assert not any(is_member(sig) for sig in one.all_signatures)
            if one.kind is DeviceKind.NVME and not one.external:
                assert internal
        if roles[one.id].access is Access.DESTINATION:
            assert one.id not in sources
            assert len(same) == 1
            assert grants[one.id].generation == one.generation
