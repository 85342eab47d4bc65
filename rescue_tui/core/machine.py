"""A machine as sysfs, the udev database and /proc tell it: raw, frozen, and loadable from JSON for tests.

Nothing is interpreted here. Text is as the kernel gave it (bytes that are not UTF-8 are lone surrogates, see
`core.text.decode`), so a recorded machine keeps even hostile serials; `core.disks` turns it into the device model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rescue_tui.core.errors import FormatError

_AGAIN = "Record the machine again."



@dataclass(frozen=True, slots=True)
class SysNode:
    """One device directory of sysfs.

    ``path`` begins with /devices. ``attrs`` maps attribute files (relative, e.g. ``queue/logical_block_size``) to their
    text without the last line feed; binary ones (vpd pages) are decoded the same way and lose nothing. ``udev`` are the
    properties of the udev database. ``classes`` are sub-directories that tell the role of a device without an
    attribute (``ata_port``, ``sas_end_device``).
    """

    path: str
    subsystem: str = ""
    driver: str = ""
    attrs: Mapping[str, str] = field(default_factory=dict)
    udev: Mapping[str, str] = field(default_factory=dict)
    holders: tuple[str, ...] = ()
    slaves: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The kernel's name of the device."""
        return self.path.rpartition("/")[2]

    @property
    def node(self) -> str:
        """The device node that devtmpfs makes: sysfs writes a slash in a name as ``!``."""
        return f"/dev/{self.name.replace('!', '/')}"

    def attr(self, name: str) -> str:
        """The text of an attribute, empty when there is none."""
        return self.attrs.get(name, "")

    def number(self, name: str) -> int:
        """An attribute as a number, 0 when there is none or it is no number."""
        text = self.attrs.get(name, "").strip()
        return int(text) if text.isascii() and text.isdigit() else 0

    @property
    def dev(self) -> tuple[int, int]:
        """Major and minor number, (0, 0) for a hidden node."""
        major, colon, minor = self.attr("dev").strip().partition(":")
        if colon and f"{major}{minor}".isascii() and major.isdigit() and minor.isdigit():
            return int(major), int(minor)
        return 0, 0

    @property
    def kernel_properties(self) -> Mapping[str, str]:
        """The properties of the kernel's uevent file (PARTNAME, DISKSEQ ...)."""
        pairs = (line.partition("=") for line in self.attr("uevent").split("\n"))
        return {key: value for key, equals, value in pairs if equals}


@dataclass(frozen=True, slots=True)
class Machine:
    """All device directories that matter, by path, and the texts of /proc that say what is in use.

    ``majors`` maps major numbers of block devices to the drivers' names (/proc/devices). ``boot_part_uuid`` is the
    EFI variable LoaderDevicePartUUID, in lower case, empty when firmware or loader set none.
    """

    nodes: Mapping[str, SysNode]
    majors: Mapping[int, str] = field(default_factory=dict)
    mountinfo: str = ""
    swaps: str = ""
    boot_part_uuid: str = ""
    # Looked up for every disk: without an index a large machine would hold up the screen.
    _by_subsystem: Mapping[str, tuple[SysNode, ...]] = field(init=False, repr=False, compare=False)
    _by_parent: Mapping[str, tuple[SysNode, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_subsystem: dict[str, list[SysNode]] = {}
        by_parent: dict[str, list[SysNode]] = {}
        for path in sorted(self.nodes):
            node = self.nodes[path]
            by_subsystem.setdefault(node.subsystem, []).append(node)
            if node.subsystem == "block" and "partition" in node.attrs:
                by_parent.setdefault(path.rpartition("/")[0], []).append(node)
        object.__setattr__(self, "_by_subsystem", {name: tuple(nodes) for name, nodes in by_subsystem.items()})
        object.__setattr__(self, "_by_parent", {
            path: tuple(sorted(nodes, key=lambda node: node.number("partition"))) for path, nodes in by_parent.items()})

    def ancestors(self, path: str) -> tuple[SysNode, ...]:
        """Known nodes above ``path``, the nearest first."""
        found: list[SysNode] = []
        above = path.rpartition("/")[0]
        while above:
            if above in self.nodes:
                found.append(self.nodes[above])
            above = above.rpartition("/")[0]
        return tuple(found)

    def of(self, subsystem: str) -> tuple[SysNode, ...]:
        """All nodes of a subsystem, ordered by path."""
        return self._by_subsystem.get(subsystem, ())

    def whole_disks(self) -> tuple[SysNode, ...]:
        """Block nodes that are no partition, hidden ones too."""
        return tuple(node for node in self.of("block") if "partition" not in node.attrs)

    def partitions(self, disk: SysNode) -> tuple[SysNode, ...]:
        """Partitions of a disk, by number."""
        return self._by_parent.get(disk.path, ())

    @classmethod
    def from_plain(cls, plain: object) -> Machine:
        """A machine from what `to_plain` made, once through JSON. FormatError when the shape is another one."""
        top = _mapping(plain, "machine")
        nodes: dict[str, SysNode] = {}
        for path, raw in _mapping(top.get("nodes"), "nodes").items():
            item = _mapping(raw, path)
            nodes[path] = SysNode(
                path, _text(item.get("subsystem", "")), _text(item.get("driver", "")), _texts(item.get("attrs", {})),
                _texts(item.get("udev", {})), _names(item.get("holders", [])), _names(item.get("slaves", [])),
                _names(item.get("classes", [])))
        majors = _texts(top.get("majors", {}))
        if not all(key.isascii() and key.isdigit() for key in majors):
            raise FormatError("A machine's majors must be numbers.", _AGAIN)
        return cls(nodes, {int(key): value for key, value in majors.items()}, _text(top.get("mountinfo", "")),
                   _text(top.get("swaps", "")), _text(top.get("boot_part_uuid", "")))

    def to_plain(self) -> dict[str, object]:
        """What `json.dumps` can write (keep ensure_ascii on: odd bytes are lone surrogates)."""
        return {
            "nodes": {path: _node_to_plain(self.nodes[path]) for path in sorted(self.nodes)},
            "majors": {str(key): self.majors[key] for key in sorted(self.majors)},
            "mountinfo": self.mountinfo, "swaps": self.swaps, "boot_part_uuid": self.boot_part_uuid,
        }


def _node_to_plain(node: SysNode) -> dict[str, object]:
    """A node without its empty fields: a recorded machine is read by people too."""
    fields: dict[str, object] = {
        "subsystem": node.subsystem, "driver": node.driver, "attrs": dict(node.attrs), "udev": dict(node.udev),
        "holders": list(node.holders), "slaves": list(node.slaves), "classes": list(node.classes),
    }
    return {name: value for name, value in fields.items() if value}


def _mapping(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise FormatError(f"{what} of a recorded machine is no object.", _AGAIN)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise FormatError("A recorded machine holds something else where a text must be.", _AGAIN)
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise FormatError("A recorded machine holds a text that stands for no bytes.", _AGAIN) from error
    return value


def _texts(value: object) -> dict[str, str]:
    return {key: _text(item) for key, item in _mapping(value, "a table").items()}


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise FormatError("A recorded machine holds something else where a list must be.", _AGAIN)
    return tuple(_text(item) for item in value)
