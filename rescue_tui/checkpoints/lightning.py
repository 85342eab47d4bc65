"""What PyTorch Lightning's ``.ckpt`` must hold (trainer/connectors/checkpoint_connector.py, dump_checkpoint)."""

from __future__ import annotations

import re
from dataclasses import replace

from rescue_tui.checkpoints.model import CheckpointFinding, Reading
from rescue_tui.core.finding import Severity

_VERSION = "pytorch-lightning_version"
_STEP_IN_NAME = re.compile(r"(?:^|[-_])step=(\d{1,18})(?!\d)")


def checked(reading: Reading, path: str) -> Reading:
    """The reading, with a warning where the step inside is not the one in the name, or the weights are not there."""
    if _VERSION not in reading.values:
        return reading
    findings = list(reading.findings)
    step = reading.values.get("global_step")
    named = _STEP_IN_NAME.search(path.rpartition("/")[2])
    if named and isinstance(step, int) and int(named[1]) != step:
        findings.append(CheckpointFinding(
            Severity.WARNING, "step-differs-from-name", f"The step inside is {step}, the name says {named[1]}: it was "
            "renamed, or another save lies under this name.", file=path))
    if reading.tensors and not any(tensor.name.startswith("state_dict.") for tensor in reading.tensors):
        findings.append(CheckpointFinding(Severity.WARNING, "weights-missing", "It holds no state_dict.", file=path))
    return replace(reading, findings=tuple(findings))
