"""What mutations start from: saves by their real writers, damaged ones too, and pickles that would do harm if run."""

from __future__ import annotations

import struct
import tarfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.support.ckpt import gguf_files, zips
from tests.support.ckpt.premade import DIRECTORY, load
from tests.support.ckpt.saves import safetensors_file, sharded

Files = Mapping[str, bytes]
# A reader's time grows with the size of what it reads, what it can be led into does not.
MOST_BYTES = 96 << 10
_LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e80024de9032e")  # the magic number and the protocol, pickled
_PREMADE = ("orbax-files", "orbax-files3", "orbax-ocdbt", "orbax-run", "orbax-zarr3", "ocdbt-deep", "tf-dtypes",
            "tf-object", "tf-sharded", "zarr-codecs")


def seeds(trap: Path) -> dict[str, Files]:
    """Trees by name. Of those that are too large the largest files are cut; ``trap`` is made by a pickle that runs."""
    found: dict[str, Files] = {f"premade/{name}": load(name).files for name in _PREMADE}
    found |= {f"handed/{name}": files for name, files in _handed().items()}
    found |= {
        "built/safetensors": {"model.safetensors": safetensors_file({"w": 64, "b": 3}, {"format": "pt", "step": "7"})},
        "built/sharded": sharded(),
        "built/gguf": {"model.gguf": gguf_files.build(*gguf_files.model())},
        "built/npz": {"weights.npz": zips.archive({"a.npy": zips.array("<f4", (2, 3), bytes(range(24)))})},
        "built/npy": {"weights.npy": zips.array("<f8", (4,), bytes(range(32)))},
        "built/empty": {"model.pt": b"", "model.safetensors": b"", "x.gguf": b""},
    }
    for name, data in _traps(trap).items():
        found[f"trap/{name}"] = {name: data}
    return {name: small for name, files in sorted(found.items()) if (small := _cut(files))}


def _handed() -> dict[str, dict[str, bytes]]:
    cases: dict[str, dict[str, bytes]] = defaultdict(dict)
    with tarfile.open(DIRECTORY / "handed.tar") as archive:
        for member in archive:
            _, _, path = member.name.removeprefix("./").partition("/")
            case, _, inner = path.partition("/")
            content = archive.extractfile(member) if member.isfile() and inner else None
            if content is not None:
                cases[case][inner] = content.read()
    return cases


def _cut(files: Files) -> Files:
    share = MOST_BYTES // max(1, len(files))
    if sum(map(len, files.values())) <= MOST_BYTES:
        return files
    return {path: data[:max(share, 4096)] for path, data in files.items()}


def _traps(trap: Path) -> dict[str, bytes]:
    call = f"cposix\nsystem\n(S'touch {trap}'\ntR.".encode()
    deep = b"\x80\x02" + b"(" * 5000 + b"t" * 5000 + b"."
    wide = b"\x80\x02]q\x00" + b"(h\x00h\x00h\x00h\x00e" * 200 + b"."
    long = b"\x80\x04\x8d" + struct.pack("<Q", 1_000_000_000) + b"x."
    found = {}
    for name, data in {"call": call, "deep": deep, "wide": wide, "long": long}.items():
        found[f"{name}.pt"] = zips.archive(
            {f"{name}/data.pkl": data, f"{name}/version": b"3\n", f"{name}/data/0": bytes(8)})
        found[f"{name}-legacy.pt"] = _LEGACY + data * 3
    return found
