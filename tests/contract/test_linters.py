"""The linters as tests, so that `make test` says all there is to say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.source_rules import ROOT, interpreter, shell_scripts

BIN = Path(sys.executable).parent
LIMIT_SECONDS = 600


def _run(tool: str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BIN / tool), *arguments], cwd=cwd, capture_output=True, text=True, timeout=LIMIT_SECONDS,
                          check=False)


def _assert_clean(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{done.args}\n{done.stdout}{done.stderr}"


def assert_tool_passes(tool: str, arguments: Sequence[str]) -> None:
    """The tool of this environment ends with 0 on the whole project; its output is the failure's text."""
    _assert_clean(_run(tool, *arguments))


@pytest.mark.parametrize(("tool", "arguments"), [
    ("ruff", ["check", "--no-cache", "."]),
    ("mypy", []),
    ("lint-imports", ["--no-cache"]),
    ("codespell", []),
], ids=["ruff", "mypy", "lint-imports", "codespell"])
def test_linter_passes(tool: str, arguments: list[str]) -> None:
    assert_tool_passes(tool, arguments)


def test_shell_scripts_pass_shellcheck() -> None:
    scripts = [str(path.relative_to(ROOT)) for path in shell_scripts()]
    assert scripts
    # SC1091: files of the machine that a script reads (/etc/os-release) aren't here to be followed.
    assert_tool_passes("shellcheck", ["--severity=style", "--exclude=SC1091", *scripts])


def test_shellcheck_catches_a_bad_script(tmp_path: Path) -> None:
    script = tmp_path / "bad"
    script.write_text("#!/bin/sh\nrm -rf $1/\n")
    assert interpreter(script) == "sh"
    assert _run("shellcheck", str(script)).returncode != 0


def test_ruff_catches_a_spawn_outside_the_runner(tmp_path: Path) -> None:
    module = tmp_path / "bad.py"
    module.write_text("import subprocess\n\nsubprocess.run(['true'], check=True)\n")
    done = _run("ruff", "check", "--no-cache", "--config", str(ROOT / "pyproject.toml"), str(module))
    assert done.returncode != 0
    assert "TID251" in done.stdout, done.stdout + done.stderr


def test_import_contract_catches_an_arrow_that_points_up(tmp_path: Path) -> None:
    package = tmp_path / "rescue_tui"
    for name in ("core", "checkpoints", "system", "jobs", "ui"):
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").write_text("")
    for path in (ROOT / "rescue_tui").glob("*.py"):
        (package / path.name).write_text("")
    (package / "core" / "bad.py").write_text("import rescue_tui.system\n")
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    done = _run("lint-imports", "--no-cache", cwd=tmp_path)
    assert done.returncode != 0
    assert "arrows point down BROKEN" in done.stdout, done.stdout + done.stderr
