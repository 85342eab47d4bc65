"""What a name alone says: whether it may be a checkpoint's, its step, its run, and that a save was not finished.

Content decides. Names decide which files are worth opening, and what is said of those whose content says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class Promise(IntEnum):
    """How much a name promises."""

    NOTHING = 0  # belongs to other programs: not opened
    UNKNOWN = 1  # says nothing: opened where that is cheap
    WEAK = 2  # used for checkpoints and for much else: only content makes it one
    STRONG = 3  # nothing but checkpoints: also listed when it is empty, foreign or unrecognisable


_STRONG = frozenset({"pt", "pth", "ckpt", "safetensors", "gguf", "keras", "nemo", "distcp"})
_WEAK = frozenset({
    "bin", "npy", "npz", "h5", "hdf5", "hdf", "he5", "msgpack", "tar", "model", "weights", "params", "pkl",
    "pickle", "t7", "ptl", "jit", "torchscript", "pts", "mar", "flax", "ggml", "ggla", "zip", "index", "metadata",
    "pdparams", "state", "snapshot", "checkpoint", "bak", "old", "orig", "save", "part", "partial",
    "tmp", "temp", "incomplete",
})
# Endings of files that other programs write by the thousand.
_OTHER_ENDINGS = """
txt md rst py pyc pyi pyx pxd ipynb json jsonl ndjson yaml yml toml ini cfg conf log csv tsv xml html htm css scss
js mjs jsx ts tsx vue c h cc cpp cxx hpp hh hxx cu cuh o a so dylib dll exe rs go java class jar kt scala rb php pl
pm lua r m mm swift sh bash zsh fish bat ps1 cmake make mk ninja d lock sum mod sql db sqlite sqlite3 wal shm
parquet arrow feather orc avro png jpg jpeg gif bmp webp tif tiff ico svg mp3 mp4 m4a wav flac ogg opus mkv avi mov
webm pdf ps eps doc docx xls xlsx ppt pptx odt ttf otf woff woff2 eot deb rpm whl egg gz bz2 xz zst lz4 7z rar tgz
tbz iso img qcow2 vmdk patch diff rej service socket timer mount target rules desktop po mo pot tmpl j2 jinja in am
ac m4 la pc pem crt key csr pub gpg asc sig sha256 md5 sha1 srt vtt tfrecord lmdb mdb idx bpe vocab spm proto pb
tfevents wandb
"""
_OTHER = frozenset(_OTHER_ENDINGS.split())
# What a damaged or foreign file of a weak ending must be called to be taken for a checkpoint.
_MODEL_WORD = re.compile(
    r"(pytorch_model|model|weights|checkpoint|ckpt|optimizer|training_args|adapter|diffusion|consolidated|rng_state|"
    r"random_states|scheduler|unet|vae|lora|params|train_state|state_dict)", re.IGNORECASE)
_NOT_PAYLOAD = re.compile(r"(\.index\.json|\.metadata|-unfinished|\.lock|__lock)$")
_WRAPPER = re.compile(r"\.(?:gz|bz2|xz|zst|zstd|lz4)$", re.IGNORECASE)
_TEMPORARY_END = re.compile(
    r"(?:\.(?:tmp|temp|part|partial|incomplete|inprogress|crdownload|download|aria2|saving|writing)(?:[-._]?\w{1,32})?"
    r"|\.[0-9a-f]{8}\.incomplete|\.tempstate\d+|\.orbax-checkpoint-tmp(?:-\d+)?|\.tmp[-_.]?\w*|~)$", re.IGNORECASE)
_TEMPORARY_START = re.compile(r"^(?:tmp[-_]|temp[-_]|\.tmp|\.?~|\.incomplete|\.saving|partial[-_])", re.IGNORECASE)
_RSYNC = re.compile(r"^\.(?P<base>.+\.(?:pt|pth|ckpt|bin|safetensors|gguf|h5|keras|npz|npy|nemo))\.[A-Za-z0-9]{6}$")
_TF_DATA = re.compile(r"\.data-(\d{5})-of-(\d{5})$")
_SHA256 = re.compile(r"[0-9a-f]{64}$")
_STEP_WORD = re.compile(
    r"(?:^|[^a-z])(?P<word>global[-_]?step|steps?|iterations?|iters?|it|checkpoint|ckpt|updates?|batch|ba|snapshot|save)"
    r"[-_=. ]*(?P<number>\d{1,18})(?![\d]*[a-z]\w)", re.IGNORECASE)
_NUMBER_STEP = re.compile(
    r"(?<![\d.])(?P<number>\d{1,18})[-_ ]?(?:steps?|iters?|iterations?|its|ba)(?![a-z])", re.IGNORECASE)
_EPOCH = re.compile(r"(?:^|[^a-z])(?:epoch|ep|e)[-_=. ]*(?P<number>\d{1,18})(?![a-z])", re.IGNORECASE)
_BARE = re.compile(r"(?P<number>\d{1,18})$")
_TAIL_NUMBER = re.compile(r"[-_.](?P<number>\d{3,18})$")
_SHARD = re.compile(r"-\d{5}-of-\d{5}")
_ENDING = re.compile(
    r"(?:\.(?:pt|pth|bin|ckpt|safetensors|gguf|keras|h5|hdf5|npz|npy|msgpack|nemo|tar|index|model|weights|zip|pkl))+$",
    re.IGNORECASE)
_AUXILIARY = re.compile(
    r"(?:^|[-_.])(?:optim(?:izer)?(?:_states?)?|opt|scheduler|lr_scheduler|scaler|rng(?:_states?)?(?:_\d+)?|"
    r"random_states?(?:_\d+)?|training_args|sampler(?:_\d+)?|dataloader|dl_state(?:_\d+)?|"
    r"custom_checkpoint(?:_\d+)?)(?:[-_.]|$)", re.IGNORECASE)


class StepName(NamedTuple):
    """A step that a name tells, and whether it is only an epoch's number."""

    number: int
    is_epoch: bool


def without_temporary(name: str) -> str:
    """A file's or directory's name without what marks it as temporary."""
    renamed = _RSYNC.match(name)
    if renamed:
        return renamed["base"]
    shorter = _TEMPORARY_END.sub("", name)
    return _TEMPORARY_START.sub("", shorter) or shorter or name


def is_temporary(name: str) -> bool:
    """True for what a writer calls a file or directory until it is done with it."""
    return bool(_TEMPORARY_END.search(name) or _TEMPORARY_START.match(name) or _RSYNC.match(name))


def ending(name: str) -> str:
    """The last ending in lower case, without the dot; nothing for ``.bashrc`` and names without one."""
    stem, dot, last = name.rpartition(".")
    return last.lower() if dot and stem else ""


# Without any of these in it, the last ending alone decides what a name promises.
_ODD_WORDS = ("tmp", "temp", "part", "incomplete", "progress", "download", "aria", "saving", "writing", "unfinished",
              "lock", "metadata", "-of-", "~", ".gz", ".bz2", ".xz", ".zst", ".lz4")
_MOST_ENDINGS = 4096


class _Endings(dict[str, Promise]):
    """What names promise by their last dot and what is behind it; by their last letter where they have no dot.

    NOTHING is said only of endings that decide whatever stands before them.
    """

    def __missing__(self, tail: str) -> Promise:
        found = promise(f"x{tail}" if tail.startswith(".") and tail != "." else "x")
        if _WRAPPER.match(tail) or (found is Promise.NOTHING and tail[1:].lower() not in _OTHER):
            return Promise.UNKNOWN  # what stands before it matters
        if len(self) < _MOST_ENDINGS:
            self[tail] = found
        return found


_BY_ENDING = _Endings()


def promises(names: Sequence[str]) -> list[tuple[str, Promise]]:
    """The names that promise something, with what. Sees every file of a tree, so most are decided by their ending."""
    nothing, known = Promise.NOTHING, _BY_ENDING
    rest = [name for name in names if known[name[name.rfind(".") :]] is not nothing or name[:1] == "."]
    if not rest:
        return []
    text = "\n".join(rest).lower()
    if any(word in text for word in _ODD_WORDS) or text.startswith(".") or "\n." in text:
        return [(name, what) for name in rest if (what := promise(name)) is not nothing]
    return [(name, known[name[name.rfind(".") :]]) for name in rest]


def promise(name: str) -> Promise:
    """What a file's name promises."""
    last = ending(name)
    if last in _OTHER:
        wrapped = _WRAPPER.search(name)
        return Promise.STRONG if wrapped and ending(name[: wrapped.start()]) in _STRONG else Promise.NOTHING
    if last in _STRONG:
        return Promise.STRONG
    if last in _WEAK or _TF_DATA.search(name):
        base = without_temporary(name)
        return promise(base) if base != name and ending(base) not in {"", last} else Promise.WEAK
    if _NOT_PAYLOAD.search(name):
        return Promise.NOTHING
    if is_temporary(name):
        base = without_temporary(name)
        return promise(base) if base != name and ending(base) else Promise.UNKNOWN
    return Promise.UNKNOWN


def means_model(name: str) -> bool:
    """True when a file of this name that holds nothing readable is a checkpoint that was lost, not something else."""
    what = promise(name)
    return what is Promise.STRONG or (what is Promise.WEAK and bool(_MODEL_WORD.search(name)))


def is_auxiliary(path: str) -> bool:
    """True for optimizer, scheduler and random states: parts of a save that are no model by themselves."""
    return bool(_AUXILIARY.search(_ENDING.sub("", path.rpartition("/")[2])))


def sha256_of_name(name: str) -> str:
    """The checksum that a content-addressed store gave as the name (HF cache blobs, LFS objects), else nothing."""
    return name if len(name) == 64 and _SHA256.match(name) else ""


def format_of_name(name: str) -> str:
    """The contract's word for the format that a name promises."""
    base = _WRAPPER.sub("", without_temporary(name))
    return {
        "safetensors": "safetensors", "gguf": "gguf", "keras": "keras", "h5": "hdf5", "hdf5": "hdf5", "npy": "npy",
        "npz": "npz", "msgpack": "flax-msgpack", "nemo": "nemo", "distcp": "torch-dcp", "index": "tf-bundle",
    }.get(ending(base), "torch-zip")


def step_of_part(part: str) -> StepName | None:
    """The step in one part of a path: ``step_100``, ``iter_0000100``, ``epoch=1-step=7.ckpt``."""
    plain = _SHARD.sub("", _ENDING.sub("", without_temporary(part)))
    bare = _BARE.match(plain)
    if bare:
        return StepName(int(bare["number"]), False)
    words = list(_STEP_WORD.finditer(plain))
    if words:
        exact = [word for word in words if word["word"].lower().startswith(("step", "global", "iter"))]
        return StepName(int((exact or words)[-1]["number"]), False)
    number = _NUMBER_STEP.search(plain)
    if number:
        return StepName(int(number["number"]), False)
    epoch = _EPOCH.search(plain)
    if epoch:
        return StepName(int(epoch["number"]), True)
    tail = _TAIL_NUMBER.search(plain)
    return StepName(int(tail["number"]), False) if tail else None


def step_of_path(path: str) -> int | None:
    """The step that a checkpoint's path tells: its own name first, then the two directories above."""
    epoch: int | None = None
    for part in reversed([part for part in path.split("/") if part][-3:]):
        step = step_of_part(part)
        if step is not None and not step.is_epoch:
            return step.number
        if step is not None and epoch is None:
            epoch = step.number
    return epoch


def run_of_path(path: str) -> str:
    """The run directory of a checkpoint: what lies above the part of its path that names the step."""
    parts = [part for part in path.split("/") if part]
    for index, part in enumerate(parts):
        if step_of_part(part) is not None and (index == len(parts) - 1 or index >= len(parts) - 3):
            return "/".join(parts[:index]) or "."
    return "/".join(parts[:-1]) or "."
