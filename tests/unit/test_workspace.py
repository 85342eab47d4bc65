"""Where the session's own mounts lie."""

from __future__ import annotations

from pathlib import Path

from rescue_tui.system.workspace import Workspace


def test_each_target_and_partition_has_a_view_of_its_own_with_a_plain_name() -> None:
    space = Workspace(Path("/state"))
    targets = [("/d/nvme-1/image.raw", None), ("/d/nvme-1/image.raw", 1), ("/e/nvme-1/image.raw", None),
               ("/d/[/foo]\x1b\udcff/../x", None), ("/", None)]
    places = [space.view_dir(target, part) for target, part in targets]
    assert len(set(places)) == len(places)
    assert all(place.parent == Path("/state/views") for place in places)
    assert all(place.name.isascii() and place.name.isprintable() and " " not in place.name for place in places)
    assert places[0].name.startswith("nvme-1-image.raw-")
    assert space.view_dir("/d/nvme-1/image.raw", 1) == places[1]
