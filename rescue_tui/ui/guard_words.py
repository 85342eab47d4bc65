"""The write guard in the few words of the status bar. Pure."""

from __future__ import annotations

from rescue_tui.system.guard import GuardState

# The name that `system.guard.ReadOnlyFlag` gives its layer: a promise of the kernel that root can take back.
FLAG_LAYER = "read-only flag"


def guard_words(guard: GuardState) -> str:
    """``on (12 read-only)`` while the flag alone protects, else ``on (12 locked)``; anything weaker in capitals."""
    if guard.armed:
        behind_it = any(layer.state == "armed" and layer.name != FLAG_LAYER for layer in guard.layers)
        return f"on ({guard.protected} {'locked' if behind_it else 'read-only'})"
    if guard.findings:
        return f"{len(guard.findings)} OPEN DEVICES" if len(guard.findings) > 1 else "1 OPEN DEVICE"
    return "NOT ARMED"


def refused_attempts(guard: GuardState) -> str:
    """Refused write attempts; a dash while no layer counts them."""
    return "-" if guard.refused is None else str(guard.refused)
