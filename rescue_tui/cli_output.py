"""Where the command line writes: answers to stdout, messages to stderr; one JSON document, or text for people.

Output to a pipe or a file has neither colour nor wrapping nor trailing blanks, so that `grep` and `cut` work on it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rescue_tui.cli_documents import Document, error_document
from rescue_tui.core.errors import RescueError
from rescue_tui.core.text import printable, printable_lines

_UNWRAPPED_COLUMNS = 16 << 10


class Output:
    """The two streams of one call. Every text goes through `printable` here, whatever it came from."""

    def __init__(self, stdout: TextIO, stderr: TextIO, *, as_json: bool) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self.as_json = as_json
        self.on_terminal = stdout.isatty()

    def flush(self) -> None:
        """Hand over what is still buffered; OSError when nobody takes it."""
        self.stdout.flush()
        self.stderr.flush()

    def document(self, document: Document) -> None:
        """Print one document as one line; nothing in text mode."""
        if self.as_json:
            self.stdout.write(json.dumps(document, ensure_ascii=True) + "\n")
            self.stdout.flush()

    def line(self, text: str = "") -> None:
        """Print one line of the answer; nothing in JSON mode."""
        if not self.as_json:
            self.stdout.write(printable(text, None) + "\n")

    def lines(self, texts: Iterable[str]) -> None:
        """Print lines of the answer; nothing in JSON mode."""
        for text in texts:
            self.line(text)

    def marked(self, lines: Iterable[tuple[str, bool]]) -> None:
        """Print lines of the answer, those that are marked in red on a terminal (which the words say too)."""
        for text, alarming in lines:
            if alarming and self.on_terminal and not self.as_json:
                Console(file=self.stdout, highlight=False, soft_wrap=True).print(
                    Text(printable(text, None), style="bold red"))
            else:
                self.line(text)

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
        """Print a table; columns named in ``right`` are aligned right. Nothing in JSON mode or without rows."""
        if self.as_json or not rows:
            return
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for head in heads:
            table.add_column(head, overflow="fold", justify="right" if head in right else "left",
                             no_wrap=not self.on_terminal)
        for row in rows:
            table.add_row(*(Text(printable(cell, None)) for cell in row))
        if self.on_terminal:
            Console(file=self.stdout, highlight=False).print(table)
            return
        buffer = io.StringIO()
        console = Console(file=buffer, width=_UNWRAPPED_COLUMNS, force_terminal=False, color_system=None)
        console.print(table)
        self.stdout.write("".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines()))

    def say(self, text: str) -> None:
        """Print one message to stderr, in both modes."""
        self.stderr.write(f"stasis: {printable(text, None)}\n")
        self.stderr.flush()

    def error(self, verb: str, error: RescueError) -> None:
        """Print an error: a document in JSON mode, else a sentence, the hint and the evidence on stderr."""
        if self.as_json:
            self.document(error_document(verb, error))
            return
        self.say(str(error))
        if error.evidence:
            self.stderr.write("".join(f"  {line}\n" for line in printable_lines(error.evidence).splitlines()))
