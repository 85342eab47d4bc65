"""The write guard in the few words of the status bar. Pure."""

from __future__ import annotations

from rescue_tui.system.guardview import GuardState


def guard_words(guard: GuardState) -> str:
    """``armed (12 locked)``; anything weaker in capitals: open devices, ``PARTIAL (1 of 11 layers)``, ABSENT."""
    open_devices = sum(finding.code == "unprotected" for finding in guard.findings)
    if open_devices:
        return f"{open_devices} OPEN DEVICES" if open_devices > 1 else "1 OPEN DEVICE"
    match guard.level:
        case "armed":
            return f"armed ({guard.protected} locked)"
        case "partial":
            missing = sum(not layer.armed for layer in guard.layers)
            return f"PARTIAL ({missing} of {len(guard.layers)} layers)" if missing else "PARTIAL (w shows why)"
    return f"ABSENT ({guard.protected} read-only)" if guard.protected else "ABSENT"


def guard_style(guard: GuardState) -> str:
    """Red for anything but armed; the words say it too."""
    return "" if guard.armed else "bold red"


def refused_attempts(guard: GuardState) -> str:
    """Refused write attempts; a dash while no layer counts them."""
    return "-" if guard.refused is None else str(guard.refused)
