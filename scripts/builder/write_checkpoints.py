"""Writes the demonstration checkpoints with the real writers. Runs in the throw-away environment, not in the builder's.

Called as ``python write_checkpoints.py DIRECTORY``. Without PyTorch only the safetensors run is made. All numbers come
from fixed seeds.
"""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from pathlib import Path

import numpy
import safetensors.numpy

HIDDEN = 256
LAYERS = 4
STEPS = (300, 600, 900)
CRASHED_STEP = 1200
CRASHED_SHARE = 0.6
DISK_FULL = 28


def weights(step: int) -> dict[str, numpy.ndarray]:
    """The tensors of a small language model at a step."""
    numbers = numpy.random.default_rng(step)
    block = {
        "attn.qkv": (3 * HIDDEN, HIDDEN), "attn.out": (HIDDEN, HIDDEN),
        "mlp.up": (4 * HIDDEN, HIDDEN), "mlp.down": (HIDDEN, 4 * HIDDEN),
    }
    tensors = {"embed.weight": (4096, HIDDEN), "norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        tensors |= {f"layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    return {name: numbers.standard_normal(shape, dtype=numpy.float32) for name, shape in tensors.items()}


class Crash(io.RawIOBase):
    """A file that takes only so many bytes, as on a node that dies in mid-write."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._file = path.open("wb")
        self._left = limit_bytes

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        self._file.write(view[: self._left])
        if len(view) > self._left:
            self._file.close()
            raise OSError(DISK_FULL, "the node died here")
        self._left -= len(view)
        return len(view)


def language_model(top: Path) -> None:
    """A run in the Hugging Face layout: a directory a step, the last one half-written."""
    for step in (*STEPS, CRASHED_STEP):
        directory = top / f"checkpoint-{step}"
        directory.mkdir(parents=True)
        data = safetensors.numpy.save(weights(step), metadata={"format": "pt"})
        if step == CRASHED_STEP:
            (directory / "model.safetensors").write_bytes(data[: int(len(data) * CRASHED_SHARE)])
            continue
        (directory / "model.safetensors").write_bytes(data)
        (directory / "trainer_state.json").write_text(json.dumps({
            "global_step": step, "epoch": step / 300, "best_metric": None,
            "log_history": [{"step": at, "loss": round(4.2 / (1 + at / 200), 4)} for at in range(100, step + 1, 100)],
        }, indent=2))
        config = {"model_type": "demo", "hidden_size": HIDDEN, "layers": LAYERS}
        (directory / "config.json").write_text(json.dumps(config))


def vision_model(top: Path) -> None:
    """A run of plain torch.save files with optimizer state, the last one cut off in the middle."""
    import torch  # noqa: PLC0415  # the safetensors run can do without it

    top.mkdir(parents=True)
    for epoch in (10, 20, 30, 40):
        torch.manual_seed(epoch)
        model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(8, 512)).square().mean().backward()
        optimizer.step()
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        path = top / f"epoch_{epoch:03}.pt"
        if epoch < 40:
            torch.save(state, path)
            continue
        try:
            torch.save(state, Crash(path, int((top / "epoch_030.pt").stat().st_size * CRASHED_SHARE)))
        except (OSError, RuntimeError) as error:
            print(f"{path.name} is cut off on purpose: {error}", file=sys.stderr)


def main() -> None:
    """Fill the directory that is named on the command line."""
    top = Path(sys.argv[1])
    language_model(top / "runs/lm-demo")
    if importlib.util.find_spec("torch") is not None:
        vision_model(top / "runs/vision-demo")


if __name__ == "__main__":
    main()
