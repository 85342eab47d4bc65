"""Rules of this project that no linter knows, as functions from a module to sentences that say what breaks it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 450
BANNED_NAMES = frozenset({"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py"})
BROAD = frozenset({"Exception", "BaseException"})
# The job worker turns a crash into a FAILED job; the app's crash screen gives the terminal back; the bridge hands what
# a thread raised to the caller that waits for it.
MAY_CATCH_ALL = frozenset({
    "rescue_tui/jobs/worker.py", "rescue_tui/jobs/manager.py", "rescue_tui/ui/app.py", "rescue_tui/ui/bridge.py"})
IMPURE = frozenset({"asyncio", "os", "subprocess", "socket", "fcntl", "shutil", "tempfile", "pyudev", "textual", "rich",
                    "jinja2"})
# Calls that end a test when what they wait or look for doesn't come.
FAILING_CALLS = frozenset({"raises", "warns", "fail", "see", "until", "wait_for"})
# What Textual calls by name and documents itself.
TEXTUAL_HOOKS = ("compose", "render", "get_content_height", "get_content_width")
TEXTUAL_PREFIXES = ("on_", "watch_", "validate_", "compute_", "key_", "render_")


@dataclass(frozen=True, slots=True)
class Module:
    """A source file: path relative to the project, text, syntax tree."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        """The parsed text."""
        return ast.parse(self.text, self.path)


def python_modules(*directories: str) -> list[Module]:
    """Every Python file below the directories, and the scripts there that name python3 in their first line."""
    found = []
    for directory in directories:
        for path in sorted((ROOT / directory).rglob("*")):
            if path.is_file() and not path.is_symlink() and (path.suffix == ".py" or interpreter(path) == "python3"):
                found.append(Module(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")))
    return found


def interpreter(path: Path) -> str:
    """The program that the first line names (``sh``, ``python3``), or nothing."""
    with path.open("rb") as stream:
        first = stream.readline(200)
    if not first.startswith(b"#!"):
        return ""
    words = first[2:].decode("utf-8", "replace").split()
    if words and words[0].endswith("/env") and len(words) > 1:
        words = words[1:]
    return words[0].rsplit("/", 1)[-1] if words else ""


def shell_scripts() -> list[Path]:
    """Every sh and bash script of the project, found by its first line."""
    return [path for directory in ("scripts", "image", ".ci", "tests") for path in sorted((ROOT / directory).rglob("*"))
            if path.is_file() and not path.is_symlink() and interpreter(path) in {"sh", "bash", "dash"}]


def too_long(module: Module) -> Iterator[str]:
    """A module of more than MAX_LINES lines does too much."""
    count = len(module.text.splitlines())
    if count > MAX_LINES:
        yield f"{module.path}: {count} lines, {MAX_LINES} are allowed"


def vague_name(module: Module) -> Iterator[str]:
    """A module is named after what it does."""
    if module.path.rsplit("/", 1)[-1] in BANNED_NAMES:
        yield f"{module.path}: the name says nothing"


def missing_docstrings(module: Module) -> Iterator[str]:
    """Modules, public classes, functions and methods say what they do."""
    if module.text.strip() and ast.get_docstring(module.tree) is None:
        yield f"{module.path}:1: module without docstring"
    for node, name in _public(module.tree.body, "", in_class=False):
        if ast.get_docstring(node) is None:
            yield f"{module.path}:{node.lineno}: {name} without docstring"


Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.ClassDef | Function


def _public(body: list[ast.stmt], prefix: str, *, in_class: bool) -> Iterator[tuple[Documented, str]]:
    for node in body:
        if not isinstance(node, Documented) or node.name.startswith("_"):
            continue
        if in_class and not isinstance(node, ast.ClassDef) and (_is_hook(node.name) or _is_setter_or_overload(node)):
            continue
        yield node, prefix + node.name
        if isinstance(node, ast.ClassDef) and not _is_bare_protocol(node):
            yield from _public(node.body, f"{node.name}.", in_class=True)


def _is_bare_protocol(node: ast.ClassDef) -> bool:
    """A protocol whose methods are only names of what is documented where it is done."""
    return any(ast.unparse(base).startswith("Protocol") for base in node.bases) and all(
        isinstance(each.body[-1], ast.Expr) and isinstance(each.body[-1].value, ast.Constant)
        and each.body[-1].value.value is ... for each in node.body if isinstance(each, Function))


def _is_hook(name: str) -> bool:
    return name in TEXTUAL_HOOKS or name.startswith(TEXTUAL_PREFIXES)


def _is_setter_or_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any((isinstance(each, ast.Attribute) and each.attr == "setter")
               or (isinstance(each, ast.Name) and each.id == "overload") for each in node.decorator_list)


def impure_imports(module: Module) -> Iterator[str]:
    """core decides; it has no way to the machine."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for name in [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]:
            if name.split(".", 1)[0] in IMPURE:
                yield f"{module.path}:{node.lineno}: imports {name}"


def broad_excepts(module: Module) -> Iterator[str]:
    """Who catches everything hides mistakes; see MAY_CATCH_ALL."""
    if module.path in MAY_CATCH_ALL:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            caught: list[ast.expr | None] = [*node.type.elts] if isinstance(node.type, ast.Tuple) else [node.type]
            # What cleans up and raises again hides nothing.
            raises = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            if not raises and any(each is None or (isinstance(each, ast.Name) and each.id in BROAD) for each in caught):
                yield f"{module.path}:{node.lineno}: catches everything"
        elif isinstance(node, ast.Call) and _called(node).rsplit(".", 1)[-1] == "suppress" and any(
                isinstance(each, ast.Name) and each.id in BROAD for each in node.args):
            yield f"{module.path}:{node.lineno}: suppresses everything"


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def sleeps(module: Module) -> Iterator[str]:
    """A test that sleeps is slow on a fast machine and fails on a slow one; `asyncio.sleep(0)` only yields."""
    from_time = any(isinstance(node, ast.ImportFrom) and node.module == "time"
                    and any(alias.name == "sleep" for alias in node.names) for node in ast.walk(module.tree))
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        called = _called(node)
        zero = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        if called == "time.sleep" or (called == "sleep" and from_time) or (called == "asyncio.sleep" and not zero):
            yield f"{module.path}:{node.lineno}: {called}"


def skips_without_reason(module: Module) -> Iterator[str]:
    """A skipped test says why, or nobody will ever run it again."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            called = _called(node)
            keywords = {keyword.arg for keyword in node.keywords}
            bare_call = called in {"pytest.skip", "pytest.xfail"} and not node.args and "reason" not in keywords
            bare_mark = called.startswith(("pytest.mark.skip", "pytest.mark.xfail")) and "reason" not in keywords
            if bare_call or (bare_mark and not (called == "pytest.mark.skip" and node.args)):
                yield f"{module.path}:{node.lineno}: {called} without reason"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Attribute) and ast.unparse(mark) in {"pytest.mark.skip", "pytest.mark.xfail"}:
                    yield f"{module.path}:{mark.lineno}: {ast.unparse(mark)} without reason"


def shells(module: Module) -> Iterator[str]:
    """No text ever becomes a shell command."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        called = _called(node)
        with_shell = any(keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant)
                                                         and keyword.value.value is False) for keyword in node.keywords)
        if with_shell or called in {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
                                    "asyncio.create_subprocess_shell"}:
            yield f"{module.path}:{node.lineno}: {called} goes through a shell"


def tests_without_assertion(module: Module) -> Iterator[str]:
    """A test that asserts nothing passes for ever."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_") and not any(
                _asserts(each) for each in ast.walk(node)):
            yield f"{module.path}:{node.lineno}: {node.name} asserts nothing"


def _asserts(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return True
    if not isinstance(node, ast.Call):
        return False
    last = _called(node).rsplit(".", 1)[-1]
    return last in FAILING_CALLS or last.startswith(("assert_", "check_", "expect"))
