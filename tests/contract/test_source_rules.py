"""The project's own rules, each with a bad snippet that it must catch: a rule that catches nothing proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tests.support import source_rules as rules
from tests.support.source_rules import Module

PACKAGE = ("rescue_tui",)
EVERYTHING = ("rescue_tui", "scripts", "tests")

Rule = Callable[[Module], Iterable[str]]


@pytest.mark.parametrize(("rule", "directories"), [
    (rules.too_long, EVERYTHING),
    (rules.vague_name, EVERYTHING),
    (rules.missing_docstrings, PACKAGE),
    (rules.impure_imports, ("rescue_tui/core",)),
    (rules.broad_excepts, EVERYTHING),
    (rules.sleeps, ("tests",)),
    (rules.skips_without_reason, ("tests",)),
    (rules.tests_without_assertion, ("tests",)),
    (rules.shells, EVERYTHING),
], ids=lambda value: getattr(value, "__name__", "+".join(value) if isinstance(value, tuple) else None))
def test_rule_holds(rule: Rule, directories: tuple[str, ...]) -> None:
    modules = rules.python_modules(*directories)
    assert modules
    broken = [sentence for module in modules for sentence in rule(module)]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(("rule", "path", "text"), [
    (rules.too_long, "rescue_tui/a.py", "x = 1\n" * 451),
    (rules.vague_name, "rescue_tui/ui/helpers.py", ""),
    (rules.missing_docstrings, "rescue_tui/a.py", "x = 1\n"),
    (rules.missing_docstrings, "rescue_tui/a.py", '"""A."""\ndef open_it():\n    pass\n'),
    (rules.missing_docstrings, "rescue_tui/a.py", '"""A."""\nclass A:\n    """A."""\n    async def go(self): ...\n'),
    (rules.missing_docstrings, "rescue_tui/a.py", '"""A."""\nclass A(Protocol):\n    def f(self): ...\n'),
    (rules.impure_imports, "rescue_tui/core/a.py", "import os.path\n"),
    (rules.impure_imports, "rescue_tui/core/a.py", "def f():\n    from asyncio import run\n"),
    (rules.broad_excepts, "rescue_tui/a.py", "try:\n    pass\nexcept Exception:\n    pass\n"),
    (rules.broad_excepts, "rescue_tui/a.py", "try:\n    pass\nexcept (OSError, BaseException):\n    pass\n"),
    (rules.broad_excepts, "rescue_tui/a.py", "try:\n    pass\nexcept:\n    pass\n"),
    (rules.broad_excepts, "rescue_tui/a.py", "with contextlib.suppress(Exception):\n    pass\n"),
    (rules.sleeps, "tests/test_a.py", "import time\ntime.sleep(1)\n"),
    (rules.sleeps, "tests/test_a.py", "from time import sleep\nsleep(1)\n"),
    (rules.sleeps, "tests/test_a.py", "async def f():\n    await asyncio.sleep(0.1)\n"),
    (rules.skips_without_reason, "tests/test_a.py", "pytest.skip()\n"),
    (rules.skips_without_reason, "tests/test_a.py", "@pytest.mark.skip\ndef test_a(): ...\n"),
    (rules.skips_without_reason, "tests/test_a.py", "@pytest.mark.skipif(True)\ndef test_a(): ...\n"),
    (rules.tests_without_assertion, "tests/test_a.py", "def test_a():\n    print(1)\n"),
    (rules.shells, "rescue_tui/a.py", "subprocess.run('ls', shell=True)\n"),
    (rules.shells, "rescue_tui/a.py", "os.system('ls')\n"),
])
def test_rule_catches_a_bad_example(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Module(path, text)))


@pytest.mark.parametrize(("rule", "path", "text"), [
    (rules.too_long, "rescue_tui/a.py", "x = 1\n" * 450),
    (rules.missing_docstrings, "rescue_tui/ui/a.py",
     '"""A."""\nclass A:\n    """A."""\n    def compose(self): ...\n    def _own(self): ...\n'),
    (rules.impure_imports, "rescue_tui/core/a.py", "import json\nfrom rescue_tui.core import text\n"),
    (rules.missing_docstrings, "rescue_tui/a.py", '"""A."""\nclass A(Protocol):\n    """A."""\n    def f(self): ...\n'),
    (rules.broad_excepts, "rescue_tui/a.py", "try:\n    pass\nexcept BaseException:\n    undo()\n    raise\n"),
    (rules.broad_excepts, "rescue_tui/jobs/worker.py", "try:\n    pass\nexcept Exception:\n    pass\n"),
    (rules.broad_excepts, "rescue_tui/a.py", "try:\n    pass\nexcept (OSError, ValueError):\n    pass\n"),
    (rules.sleeps, "tests/test_a.py", "async def f():\n    await asyncio.sleep(0)\n"),
    (rules.skips_without_reason, "tests/test_a.py", "pytest.skip('no loop devices')\n"),
    (rules.skips_without_reason, "tests/test_a.py", "@pytest.mark.skipif(True, reason='x')\ndef test_a(): ...\n"),
    (rules.tests_without_assertion, "tests/test_a.py", "def test_a():\n    with raises(OSError):\n        f()\n"),
    (rules.tests_without_assertion, "tests/test_a.py", "async def test_a():\n    await screen.see('Devices')\n"),
    (rules.shells, "rescue_tui/a.py", "subprocess.run(['ls'], shell=False)\n"),
])
def test_rule_lets_a_good_example_pass(rule: Rule, path: str, text: str) -> None:
    assert not list(rule(Module(path, text)))
