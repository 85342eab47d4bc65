"""What the boot policy asks of the command line is what the image's command line says."""

from __future__ import annotations

from rescue_tui.core.bootpolicy import REQUIRED, policy_gaps
from tests.support.source_rules import ROOT


def test_the_image_is_started_with_every_word_of_the_policy() -> None:
    lines = (ROOT / "image/cmdline").read_text(encoding="utf-8").splitlines()
    cmdline = " ".join(line for line in lines if not line.startswith("#"))
    assert policy_gaps(cmdline, ()) == ()
    for word in REQUIRED:
        assert policy_gaps(cmdline.replace(word, ""), ()) == (f"{word} is missing on the kernel's command line",)
