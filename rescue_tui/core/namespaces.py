"""NVMe: controllers, subsystems and namespaces out of a raw machine, with all paths of one namespace folded into it.

Source: Documentation/admin-guide/nvme-multipath.rst and the attributes of drivers/nvme/host/sysfs.c. A namespace that
several controllers share shows as one head node below the subsystem and one hidden node a controller; with
nvme_core.multipath=N it shows as one visible node a controller instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from rescue_tui.core.buses import is_external, pci_address
from rescue_tui.core.device import Controller, LbaFormat, Namespace, Subsystem
from rescue_tui.core.finding import Finding, Severity
from rescue_tui.core.ident import DeviceId, namespace_id
from rescue_tui.core.machine import Machine, SysNode
from rescue_tui.core.text import printable

LIVE = "live"


@dataclass(frozen=True, slots=True)
class FoldedNamespace:
    """One namespace: the node to use, every other visible node of it, the hidden ones, and what they say together."""

    node: SysNode
    also: tuple[SysNode, ...]
    hidden: tuple[SysNode, ...]
    id: DeviceId
    namespace: Namespace
    wwid: str
    external: bool
    slot: str
    findings: tuple[Finding, ...]


def fold(machine: Machine, blocks: tuple[SysNode, ...]) -> tuple[FoldedNamespace, ...]:
    """Every namespace among ``blocks`` (whole NVMe disks, hidden ones too), each of them once."""
    groups: dict[tuple[str, str, str], list[SysNode]] = {}
    for block in blocks:
        groups.setdefault(_key(machine, block), []).append(block)
    return tuple(
        _folded(machine, visible, tuple(node for node in nodes if _is_hidden(node)))
        for nodes in groups.values()
        # Hidden nodes alone are paths to a head that is just going away.
        if (visible := tuple(node for node in nodes if not _is_hidden(node)))
    )


def lone_controllers(machine: Machine, found: tuple[FoldedNamespace, ...]) -> tuple[Finding, ...]:
    """A finding for every controller that leads to no namespace: a dead disk shows this way."""
    used = {controller.name for item in found for controller in item.namespace.subsystem.controllers}
    return tuple(
        Finding(
            Severity.ERROR, "controller-without-namespace",
            f"NVMe controller {printable(node.name)} ({_text(node, 'model')}, serial {_text(node, 'serial')}, "
            f"{pci_address((node, *machine.ancestors(node.path))) or _text(node, 'transport')}) shows no namespace; "
            f"its state is {_text(node, 'state') or 'unknown'}.")
        for node in machine.of("nvme")
        if node.name not in used and node.attr("cntrltype") not in ("discovery", "admin")
    )


def _is_hidden(node: SysNode) -> bool:
    return node.attr("hidden").strip() == "1"


def _text(node: SysNode, name: str) -> str:
    return printable(node.attr(name).strip(" \0"))


def _parent(machine: Machine, block: SysNode) -> SysNode | None:
    return next((node for node in machine.ancestors(block.path) if node.subsystem in ("nvme", "nvme-subsystem")), None)


def _key(machine: Machine, block: SysNode) -> tuple[str, str, str]:
    """What the nodes of one namespace have in common: subsystem, nsid, and identifiers in case nsids were reused."""
    parent = _parent(machine, block)
    nqn = parent.attr("subsysnqn") if parent is not None else ""
    if not nqn:
        return block.path, "", ""
    return nqn, block.attr("nsid").strip(), block.attr("wwid").strip()


def _folded(machine: Machine, visible: tuple[SysNode, ...], hidden: tuple[SysNode, ...]) -> FoldedNamespace:
    states = {node.path: (_parent(machine, node) or node).attr("state").strip() for node in visible}
    # The head node first, since the kernel moves I/O between the paths below it; then nodes of live controllers.
    ordered = sorted(visible, key=lambda node: (not _is_head(machine, node), states[node.path] != LIVE, node.dev))
    node = ordered[0]
    subsystem = _subsystem(machine, node, (*visible, *hidden))
    nguid, uuid = node.attr("nguid").strip(), node.attr("uuid").strip()
    if _digits(uuid) == _digits(nguid):
        uuid = ""  # the kernel prints the NGUID as "uuid" when the namespace has none
    eui64 = node.attr("eui").strip()
    nsid = node.number("nsid")
    identity = namespace_id(nguid=nguid, eui64=eui64, uuid=uuid, nqn=subsystem.nqn and _raw_nqn(machine, node),
                            model=subsystem.model, serial=subsystem.serial, nsid=nsid)
    above = machine.ancestors(node.path)
    paths = tuple(sorted(printable(path.name) for path in (hidden or ordered)))
    external = is_external(above) or any(controller.removable for controller in subsystem.controllers)
    namespace = Namespace(
        nsid=nsid, nguid=_shown(nguid), eui64=_shown(eui64), uuid=_shown(uuid),
        lba_format=LbaFormat(node.number("queue/logical_block_size") or 512, _metadata_bytes(node)),
        subsystem=subsystem, paths=paths)
    slots = [controller.pci_slot or controller.address for controller in subsystem.controllers]
    return FoldedNamespace(node, tuple(ordered[1:]), hidden, identity, namespace, printable(node.attr("wwid").strip()),
                           external, ", ".join(slot for slot in slots if slot),
                           _findings(subsystem, ordered, node))


def _is_head(machine: Machine, node: SysNode) -> bool:
    parent = _parent(machine, node)
    return parent is not None and parent.subsystem == "nvme-subsystem"


def _raw_nqn(machine: Machine, node: SysNode) -> str:
    parent = _parent(machine, node)
    return parent.attr("subsysnqn") if parent is not None else ""


def _digits(text: str) -> str:
    return text.replace("-", "").replace(" ", "").lower()


def _shown(text: str) -> str:
    """An identifier as shown: hexadecimal digits without separators, empty when it is all zeros."""
    digits = _digits(text)
    return printable(digits) if digits.strip("0") else ""


def _metadata_bytes(node: SysNode) -> int:
    """Metadata bytes a block: the kernel's own attribute (since 6.9), else what the integrity profile tells."""
    if "metadata_bytes" in node.attrs:
        return node.number("metadata_bytes")
    # T10 protection information takes 8 bytes a block beside the tag space.
    return 8 if node.attr("integrity/format").startswith("T10-DIF") else 0


def _subsystem(machine: Machine, node: SysNode, nodes: tuple[SysNode, ...]) -> Subsystem:
    parent = _parent(machine, node)
    nqn = parent.attr("subsysnqn") if parent is not None else ""
    entry = next((item for item in machine.of("nvme-subsystem") if nqn and item.attr("subsysnqn") == nqn), None)
    through = {found.path for item in nodes if (found := _parent(machine, item)) is not None}
    members = tuple(
        item for item in machine.of("nvme") if item.path in through or (nqn and item.attr("subsysnqn") == nqn))
    controllers = tuple(_controller(machine, item) for item in members)
    speaker = entry or (members[0] if members else parent) or node
    firmware = _text(speaker, "firmware_rev") or next((_text(item, "firmware_rev") for item in members), "")
    name = printable(entry.name) if entry is not None else ""
    return Subsystem(name, printable(nqn), _text(speaker, "model"), _text(speaker, "serial"), firmware, controllers)


def _controller(machine: Machine, node: SysNode) -> Controller:
    above = machine.ancestors(node.path)
    number = node.attr("cntlid").strip()
    return Controller(
        name=printable(node.name), transport=_text(node, "transport"), address=_text(node, "address"),
        state=_text(node, "state"), controller_id=int(number) if number.isascii() and number.isdigit() else None,
        pci_slot=pci_address(above), removable=is_external(above))


def _findings(subsystem: Subsystem, ordered: list[SysNode], node: SysNode) -> tuple[Finding, ...]:
    found: list[Finding] = []
    if len(ordered) > 1:
        nodes = ", ".join(printable(item.node) for item in ordered)
        found.append(Finding(
            Severity.INFO, "multipath-off",
            f"{nodes} are ways to one namespace, since the kernel's NVMe multipathing is off; {node.node} is used."))
    found.extend(
        Finding(Severity.WARNING, "controller-not-live",
                f"NVMe controller {controller.name} is {controller.state or 'in an unknown state'}, not live.")
        for controller in subsystem.controllers if controller.state != LIVE)
    return tuple(found)
