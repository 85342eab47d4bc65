"""Machines for the benches: the built image in QEMU, with disks below build/bench."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from builder.host import BUILD
from builder.qemu import BuiltImage, built_image, working_accel
from builder.vm import VmSpec

from tests.support.vm.machine import Machine

SHELL = "stasis.debug-shell=hvc0"


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """An empty directory below build/bench, removed afterwards: disks are large."""
    path = BUILD / "bench" / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def running(spec: VmSpec, directory: Path) -> Iterator[Machine]:
    """The machine, with the accelerator that works here."""
    with Machine(replace(spec, accel=working_accel(image().kernel)), directory) as machine:
        yield machine


def image() -> BuiltImage:
    """The built image; BuildError when there is none."""
    return built_image()
