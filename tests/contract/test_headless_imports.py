"""No headless module draws: each is imported in a process of its own that must not have loaded Textual."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.source_rules import ROOT

_CHILD = """
import importlib, json, sys
seen = {}
for name in sys.argv[1:]:
    importlib.import_module(name)
    if "textual" in sys.modules:
        seen[name] = "textual"
        break
print(json.dumps(seen))
"""


def _headless_modules() -> list[str]:
    found = []
    for path in sorted((ROOT / "rescue_tui").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[1] == "ui":
            continue
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def _first_with_textual(modules: list[str]) -> dict[str, str]:
    done = subprocess.run([sys.executable, "-c", _CHILD, *modules], cwd=ROOT, capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    seen: dict[str, str] = json.loads(done.stdout)
    return seen


def test_headless_modules_load_without_textual() -> None:
    modules = _headless_modules()
    for needed in ("rescue_tui.__main__", "rescue_tui.cli", "rescue_tui.services", "rescue_tui.core.text",
                   "rescue_tui.system.runner", "rescue_tui.jobs"):
        assert needed in modules
    assert _first_with_textual(modules) == {}


def test_the_check_sees_textual_in_the_ui() -> None:
    assert _first_with_textual(["rescue_tui.core.text", "textual"]) == {"textual": "textual"}
