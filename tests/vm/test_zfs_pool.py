"""A pool of a node that lost its power: nobody imports it, and whoever looks at it read-only changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from builder.host import BUILD
from builder.qemu import BuiltImage
from builder.vm import Drive, VmSpec

from tests.support.vm.deadline import Deadline
from tests.support.vm.machine import Machine
from tests.support.vm.pool import make_zfs_pool

BOOT_SECONDS = 240
SHELL = "stasis.debug-shell=hvc0"


@pytest.fixture
def pool(image: BuiltImage, boot: Callable[[VmSpec], Machine]) -> Drive:
    """The pool, made once and kept below build/."""
    path = BUILD / "vm-zoo" / "pool.img"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_suffix(".new")
        make_zfs_pool(fresh, boot, VmSpec(image.kernel_boot(), cmdline_extra=SHELL))
        fresh.rename(path)
    return Drive(name="pool", path=path, serial="ZOO-POOL")


def test_a_pool_is_not_imported_and_a_read_only_import_writes_nothing(
    image: BuiltImage, boot: Callable[[VmSpec], Machine], pool: Drive,
) -> None:
    machine = boot(VmSpec(image.kernel_boot(), drives=(pool,), cmdline_extra=SHELL))
    machine.guest.wait_ready(Deadline.after(BOOT_SECONDS))
    soon = Deadline.after(180)
    machine.guest.check("udevadm settle", soon)
    assert machine.guest.check("zpool list -H", soon) == ""
    machine.assert_untouched()
    machine.guest.check(
        "loop=$(losetup --find --show --read-only --partscan /dev/nvme0n1) && udevadm settle && "
        "zpool import -d ${loop}p1 -o readonly=on -f -N -R /mnt zoo", soon,
    )
    assert machine.guest.check("zpool list -H -o name,health", soon).split() == ["zoo", "ONLINE"]
    size = machine.guest.check("zfs mount zoo && cat /mnt/tmp/zoo/model.bin | wc -c; zpool export zoo", soon)
    assert int(size) == 16 << 20
    machine.assert_untouched()
