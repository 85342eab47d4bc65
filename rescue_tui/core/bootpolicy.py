"""The boot policy: what the kernel's command line must say so that nothing is assembled, resumed or checked by itself.

The words are those of image/cmdline (a test compares them); the last word of a name counts, as it does for the kernel.
"""

from __future__ import annotations

from collections.abc import Collection

REQUIRED = ("nohibernate", "noresume", "raid=noautodetect", "systemd.gpt_auto=no", "systemd.swap=no", "fsck.mode=skip")


def policy_gaps(cmdline: str, swaps: Collection[str]) -> tuple[str, ...]:
    """What is not as it must be, a phrase each. ``swaps`` are the paths of swap areas in use; zram is memory."""
    words = cmdline.split()
    last = {word.partition("=")[0]: word for word in words}
    gaps = [f"{word} is missing on the kernel's command line" for word in REQUIRED
            if last.get(word.partition("=")[0]) != word]
    gaps += [f"{path} is used as swap" for path in swaps if not path.startswith("/dev/zram")]
    return tuple(gaps)
