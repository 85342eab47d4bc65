"""Writes the HDF5 samples of tests/data/checkpoints: ``python make_hdf5.py DIRECTORY`` makes hdf5.tar.gz there.

Needs h5py, which the tests themselves do without. ``values.json`` holds every tensor as ``file:name`` with dtype, shape
and hexadecimal bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

GROUP = "model_weights"
_ABANDONED = 3


def _floats(chance: Any, *shape: int) -> Any:
    return (chance.integers(1, 200, shape) / 8).astype("f4")


def groups(path: Path, libver: str, layers: int) -> None:
    """As Keras 2 lays weights out, in the old or the new style of groups."""
    chance = np.random.default_rng(1)
    with h5py.File(path, "w", libver=libver) as file:
        group = file.create_group(GROUP)
        for index in range(layers):
            group[f"layer_{index}"] = _floats(chance, 3, index % 5 + 1)
        for index in range(12):
            group.attrs[f"note_{index}"] = index
        file.create_group("optimizer_weights/adam")["iteration"] = np.int64(77)


def indices(path: Path, libver: str) -> None:
    """One dataset for every way to store it."""
    chance = np.random.default_rng(2)
    with h5py.File(path, "w", libver=libver) as file:
        group = file.create_group(GROUP)
        for name, options in {"plain": {}, "packed": {"compression": "gzip", "shuffle": True},
                              "summed": {"fletcher32": True},
                              "both": {"compression": "gzip", "shuffle": True, "fletcher32": True}}.items():
            def add(kind: str, shape: tuple[int, ...], chunks: tuple[int, ...], most: Any = None, name: str = name,
                    options: Any = options) -> None:
                group.create_dataset(f"{kind}_{name}", data=_floats(chance, *shape), chunks=chunks, maxshape=most,
                                     **options)

            add("single", (9, 7), (9, 7))
            add("fixed", (20, 13), (5, 4))
            add("tree", (20, 13), (5, 4), (None, None))
            add("grows", (20, 13), (5, 4), (None, 13))
            add("grows_inside", (4, 30, 3), (3, 4, 2), (6, None, 3))
        group.create_dataset("pages", data=_floats(chance, 1100), chunks=(1,), maxshape=(1500,))
        group.create_dataset("many", data=_floats(chance, 700), chunks=(1,), maxshape=(None,))
        early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        early.set_chunk((3, 4))
        early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        inside = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        inside.set_layout(h5py.h5d.COMPACT)
        named = h5py.h5t.IEEE_F32LE.copy()
        named.commit(group.id, b"a_type")
        for name, plan, kind, space in (
                ("implicit", early, h5py.h5t.IEEE_F32LE, ((10, 11), (20, 30))),
                ("compact", inside, h5py.h5t.IEEE_F32LE, ((6, 4), None)),
                ("of_named_type", None, named, ((6, 4), None))):
            made = h5py.h5d.create(group.id, name.encode(), kind, h5py.h5s.create_simple(*space), dcpl=plan)
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, _floats(chance, *space[0]))
        shrunk = group.create_dataset("shrunk", data=_floats(chance, 30, 9), chunks=(7, 7), maxshape=(None, 9))
        shrunk.resize((12, 9))


def proven(path: Path) -> None:
    """A checksum over every byte: Fletcher-32 over chunks, and those of the new metadata."""
    chance = np.random.default_rng(3)
    with h5py.File(path, "w", libver="latest") as file:
        for index in range(3):
            file.create_dataset(f"{GROUP}/layer_{index}", data=_floats(chance, 20, 9), chunks=(8, 8), fletcher32=True)


def killed(path: Path, libver: str) -> None:
    """A writer that ends without closing the file, after a flush and more tensors."""
    child = os.fork()
    if not child:
        chance = np.random.default_rng(4)
        file = h5py.File(path, "w", libver=libver)
        for index in range(6):
            file[f"{GROUP}/layer_{index}"] = _floats(chance, 700)
            if index == _ABANDONED:
                file.flush()
        os._exit(0)
    os.waitpid(child, 0)


def values(root: Path) -> dict[str, Any]:
    """What h5py itself reads back."""
    found: dict[str, Any] = {}

    def add(file: str, name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            array = item[()]
            found[f"{file}:{name.replace('/', '.')}"] = {
                "dtype": array.dtype.name, "shape": list(array.shape), "bytes": array.tobytes().hex()}

    for path in sorted(root.glob("[!k]*.h5")):
        with h5py.File(path) as file:
            file.visititems(lambda name, item, path=path: add(path.name, name, item))
    return found


def main() -> None:
    """Write the tar below the directory that is named."""
    root = Path(sys.argv[1]) / "hdf5"
    root.mkdir(parents=True)
    groups(root / "groups-old.h5", "earliest", 60)
    groups(root / "groups-new.h5", "latest", 300)
    indices(root / "indices-old.h5", "earliest")
    indices(root / "indices-new.h5", "latest")
    proven(root / "proven.h5")
    for libver in ("earliest", "latest"):
        killed(root / f"killed-{libver}.h5", libver)
    (root / "values.json").write_text(json.dumps(values(root)), "utf-8")
    with tarfile.open(root.parent / "hdf5.tar.gz", "w:gz") as archive:
        archive.add(root, root.name, filter=_anonymous)
    shutil.rmtree(root)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


if __name__ == "__main__":
    main()
