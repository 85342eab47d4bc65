"""The demonstration: disks as an operator meets them, with real checkpoints, and the machine that shows them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from builder import samples
from builder.host import BUILD, BuildError, cache_dir, output_of, require_space, require_tools, run, step
from builder.vm import Drive, Kind

DEMO = BUILD / "demo"
WRITER = Path(__file__).with_name("write_checkpoints.py")
# Only what runs on a CPU: 190 MB to download and 1 GB unpacked, against 3 GB and 7 GB with CUDA.
TORCH = "torch==2.13.0+cpu"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
REQUIREMENTS = ("safetensors==0.8.0", "numpy>=2")
VENV_BYTES = 2 << 30
DEMO_BYTES = 1 << 30
# Control bytes, markup and a byte that is no UTF-8: a serial as firmware of ill repute reports it.
STRANGE_SERIAL = b"[/foo]\x1b[7m, \xff=1".decode(errors="surrogateescape")


@dataclass(frozen=True, slots=True)
class DemoDisk:
    """A disk of the demonstration. Only the one that is ``kept`` keeps what the guest writes."""

    file: str
    kind: Kind
    serial: str
    kept: bool = False


DISKS = (
    DemoDisk("checkpoints.img", "nvme", "S5GXNX0T700123"),
    DemoDisk("archive.img", "sata", "WD-WX31A8800417"),
    DemoDisk("unknown.img", "nvme", STRANGE_SERIAL),
    DemoDisk("rescue-usb.img", "usb", "AA00000000000485", kept=True),
)


def _install(python: Path, log: Path, requirements: tuple[str, ...], *options: str) -> None:
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options, *requirements],
        log=log, what="pip install")


def _environment(where: Path, log: Path) -> Path:
    """A throw-away virtual environment with the writers; its Python. Without PyTorch when that can't be had."""
    require_space(where.parent, VENV_BYTES)
    shutil.rmtree(where, ignore_errors=True)
    run([sys.executable, "-m", "venv", where], log=log, what="python3 -m venv (package python3-venv)")
    python = where / "bin/python"
    _install(python, log, REQUIREMENTS)
    torch = os.environ.get("STASIS_TORCH", TORCH)
    if not torch:
        return python
    step(f"fetching {torch} to write real checkpoints with (190 MB for the CPU build; removed again afterwards)")
    try:
        _install(python, log, (torch,), "--retries", "1", "--timeout", "30", "--extra-index-url", TORCH_INDEX)
    except BuildError:
        step(f"{torch} can't be had here (see {log}): the demonstration has no PyTorch checkpoints, only safetensors. "
             "STASIS_TORCH names another requirement, for instance torch==2.13.0 (3 GB).")
    return python


def checkpoint_tree() -> Path:
    """A directory of checkpoints written by PyTorch and safetensors themselves; made once, then from the cache."""
    wanted = (WRITER.read_text(), os.environ.get("STASIS_TORCH", TORCH), REQUIREMENTS)
    top = cache_dir() / f"samples-{hashlib.sha256(repr(wanted).encode()).hexdigest()[:16]}"
    if (top / ".complete").exists():
        return top / "tree"
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir()
    log = cache_dir() / "samples.log"
    log.unlink(missing_ok=True)
    python = _environment(top / "venv", log)
    step("writing the demonstration checkpoints")
    run([python, WRITER, top / "tree"], log=log, what="writing the checkpoints")
    shutil.rmtree(top / "venv")
    (top / ".complete").touch()
    return top / "tree"


def _archive_tree(checkpoints: Path, scratch: Path) -> Path:
    """What is on the older disk: a log, and the first checkpoint of the run."""
    run_dir = scratch / "archive/2025/lm-demo"
    run_dir.mkdir(parents=True)
    shutil.copytree(checkpoints / "runs/lm-demo/checkpoint-300", run_dir / "checkpoint-300")
    lines = [f"step {at} loss {4.2 / (1 + at / 200):.4f}\n" for at in range(0, 301, 10)]
    (run_dir / "train.log").write_text("".join(lines))
    return scratch / "archive"


def make_demo(directory: Path = DEMO, *, force: bool = False) -> None:
    """Make the disks below ``directory`` unless they are there; with ``force`` again, the destination as well.

    No mount and no root is needed. With root and loop devices the XFS is also stopped in mid-write, so that its log is
    dirty, as on a node that died.
    """
    if not force and (directory / "disks.json").exists():
        step(f"the demonstration disks are there already: {directory}")
        return
    require_space(directory, DEMO_BYTES)
    # Not the directory as a whole: it may be one of the user's own.
    (directory / "disks.json").unlink(missing_ok=True)
    tree = checkpoint_tree()
    step("making the XFS disk (512 MiB)")
    samples.xfs(directory / "checkpoints.img", 512, "CKPT", tree)
    if samples.loops_work():
        part = (tree / "runs/lm-demo/checkpoint-900/model.safetensors").read_bytes()[:4 << 20]
        samples.crash(directory / "checkpoints.img", "xfs", "runs/lm-demo/tmp-checkpoint-1200/optimizer.bin", part)
    else:
        step("no loop devices here: the XFS has a clean log, not that of a node that died")
    step("making the ext4 disk, one without a file system, and the USB disk")
    with tempfile.TemporaryDirectory(prefix="stasis-", dir=directory) as scratch:
        samples.ext4(directory / "archive.img", 256, "ARCHIVE", _archive_tree(tree, Path(scratch)))
    samples.noise(directory / "unknown.img", 64)
    samples.blank(directory / "rescue-usb.img", 2048)
    described = [
        {"file": disk.file, "kind": disk.kind, "serial": disk.serial, "kept": disk.kept} for disk in DISKS
    ]
    # Last, since its presence says that the rest is whole.
    (directory / "disks.json").write_text(json.dumps(described, indent=2) + "\n")


def demo_disks(directory: Path) -> tuple[DemoDisk, ...]:
    """The disks that ``disks.json`` in ``directory`` describes; without it, every ``*.img`` there as an NVMe disk.

    Raises :class:`BuildError` when there is none.
    """
    described = directory / "disks.json"
    if described.is_file():
        return tuple(DemoDisk(**entry) for entry in json.loads(described.read_text()))
    found = tuple(DemoDisk(path.name, "nvme", path.stem.upper()[:20]) for path in sorted(directory.glob("*.img")))
    if not found:
        raise BuildError(f"{directory} has no disk images. `make samples` makes the demonstration disks.")
    return found


def attached(directory: Path, *, snapshot: bool = True) -> tuple[Drive, ...]:
    """The disks of ``directory`` as drives of a machine.

    With ``snapshot`` what the guest writes to them goes to overlays that are made anew each time; only a disk that is
    ``kept`` is written itself.
    """
    if snapshot:
        require_tools("qemu-img")
    overlays = directory / "overlays"
    shutil.rmtree(overlays, ignore_errors=True)
    drives = []
    for number, disk in enumerate(demo_disks(directory)):
        path = directory / disk.file
        covered = snapshot and not disk.kept
        if covered:
            overlays.mkdir(exist_ok=True)
            overlay = overlays / f"{path.stem}.qcow2"
            output_of(["qemu-img", "create", "-q", "-f", "qcow2", "-b", path.resolve(), "-F", "raw", overlay])
            path = overlay
        drives.append(Drive(
            name=f"disk{number}", path=path, kind=disk.kind, serial=disk.serial, format="qcow2" if covered else "raw",
            protected=not disk.kept, removable=disk.kind == "usb",
        ))
    return tuple(drives)
