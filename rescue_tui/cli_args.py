"""The grammar of the command line: verbs, options, usage errors. Pure: argv in, values or UsageError out.

`--json` may stand before or after the verb. Nothing is abbreviated, since a script that relies on an abbreviation
breaks when an option is added.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rescue_tui import __version__
from rescue_tui.checkpoints.model import Verdict
from rescue_tui.core.errors import UsageError

VERBS = ("devices", "guard", "destination", "image", "verify", "mount", "unmount", "checkpoints", "collect",
         "report", "jobs")
FILESYSTEMS = ("ext4", "xfs", "exfat")
DEFAULT_VERDICTS = frozenset({Verdict.VERIFIED, Verdict.INTACT})
MAX_RETRIES = 1000
MAX_PARTITION = 1 << 16

_EPILOG = """\
Without a verb, the full-screen interface starts. A disk is named by its
identity, its serial or its device node; `stasis devices` lists them.

exit status: 0 good, 1 finished and damage was found, 2 usage, 3 refused by
policy, 4 a tool, feature or privilege is missing, 5 device error, 6 a tool
failed, 7 unreadable format, 8 no space, 130 interrupted with the state kept.
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of leaving the process, so that --json can make a document of it."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with argparse's sentence."""
        sentence = message[:1].upper() + message[1:]
        raise UsageError(sentence if sentence.endswith(".") else f"{sentence}.", f"`{self.prog} --help` tells more.")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments as a namespace with at least ``verb`` (None: the TUI) and ``json``.

    Raises UsageError; SystemExit(0) after --help and --version.
    """
    # The default stands in the namespace: given to the parsers, a verb's default would undo a --json before the verb.
    arguments = _parser().parse_args(list(argv), argparse.Namespace(json=False))
    if arguments.verb is None and arguments.json:
        raise UsageError("--json needs a verb.", "`stasis --help` lists the verbs.")
    return arguments


def wants_json(argv: Sequence[str]) -> bool:
    """True when ``argv`` asks for JSON, even if the rest of it can't be parsed."""
    words = list(argv)
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def verb_of(argv: Sequence[str]) -> str:
    """The verb that ``argv`` names, even if the rest of it can't be parsed; ``error`` when it names none."""
    first = next((word for word in argv if not word.startswith("-")), "")
    return first if first in VERBS else "error"


def _parser() -> argparse.ArgumentParser:
    common = _Parser(add_help=False)
    common.add_argument("--json", action="store_true", default=argparse.SUPPRESS,
                        help="print one JSON document on stdout and nothing else there")
    parser = _Parser(prog="stasis", description="Rescue disks of a dead storage node without writing to them.",
                     epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[common],
                     allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"stasis {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", parser_class=_Parser)

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=summary, description=f"{summary[:1].upper()}{summary[1:]}.",
                                parents=[common], allow_abbrev=False)

    _devices(add("devices", "list every block device with role, identity, health, signatures and guard state"))
    add("guard", "show the guard's layers, protected devices, grants and refused attempts")
    _destination(add("destination", "the only way that a disk becomes writable"), common)
    _image(add("image", "copy disks with ddrescue into a case folder"))
    verify = add("verify", "re-read a case folder against its manifest and journal")
    verify.add_argument("case", metavar="CASE", type=Path, help="case folder")
    _mount(add("mount", "mount an image or a device read-only"))
    unmount = add("unmount", "unmount what `stasis mount` mounted")
    unmount.add_argument("at", metavar="DIR", type=Path, help="mount point")
    _checkpoints(add("checkpoints", "which checkpoints are good, judged from their bytes"), common)
    collect = add("collect", "save kernel log, journal, health logs, partition tables and inventories")
    collect.add_argument("--to", metavar="DIR", type=Path, required=True, help="directory on the destination")
    report = add("report", "write the report of a case again, HTML and JSON")
    report.add_argument("case", metavar="CASE", type=Path, help="case folder")
    _jobs(add("jobs", "long work: list, attach, pause, resume, cancel"), common)
    return parser


def _devices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", nargs="?", help="only this disk, with all that is known of it")
    parser.add_argument("--no-health", dest="health", action="store_false", help="do not ask the disks for SMART data")
    parser.add_argument("--watch", action="store_true", help="print again after each change (JSON: a line each)")


def _destination(parser: argparse.ArgumentParser, common: _Parser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=summary, description=summary, parents=[common], allow_abbrev=False)
        if name != "list":
            action.add_argument("device", metavar="DEVICE", help="identity, serial or node of the disk")
        return action

    add("list", "what is granted, and what may be granted or why not")
    grant = add("grant", "open one disk for writing")
    grant.add_argument("--confirm", metavar="SERIAL", required=True, help="the serial of the disk, as shown")
    grant.add_argument("--internal", action="store_true", help="allow a disk inside this machine")
    make = add("format", "make a file system on a granted, blank disk")
    make.add_argument("--filesystem", choices=FILESYSTEMS, default="ext4", help="default: ext4")
    make.add_argument("--confirm", metavar="SERIAL", required=True, help="the serial of the disk, typed a second time")
    mount = add("mount", "mount a granted disk read-write and prove it by a test write")
    mount.add_argument("--part", metavar="N", type=_partition, help="partition number, when there are several")
    add("release", "unmount, flush and make the disk read-only again")


def _image(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", metavar="SOURCE", nargs="+", help="identity, serial or node of a disk")
    parser.add_argument("--to", metavar="DIR", type=Path, required=True, help="directory on a granted destination")
    parser.add_argument("--resume", action="store_true", help="go on with the copy that an earlier call began")
    parser.add_argument("--retries", metavar="N", type=_retries, default=0, help="passes over bad sectors (default: 0)")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and the exact commands, start nothing")
    parser.add_argument("--accept-partial", action="store_true", help="start although the destination is too small")
    parser.add_argument("--detach", action="store_true", help="start the jobs and return, do not wait for them")


def _mount(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="image file, or identity, serial or node of a device")
    parser.add_argument("--part", metavar="N", type=_partition, help="partition number")
    parser.add_argument("--at", metavar="DIR", type=Path, required=True, help="where to mount it")
    # Both are here so that who asks for a writable mount gets the true answer, which is no usage error.
    parser.add_argument("--rw", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-o", dest="options", metavar="OPTIONS", action="append", default=[], help=argparse.SUPPRESS)


def _checkpoints(parser: argparse.ArgumentParser, common: _Parser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    summary = "a verdict on every checkpoint below, and the newest good one"
    scan = actions.add_parser("scan", help=summary, description=summary, parents=[common], allow_abbrev=False)
    scan.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="directory or file")
    scan.add_argument("--values", action="store_true", help="read numbers too: NaN, infinite and absurd values")
    summary = "copy good checkpoints, each file proven by reading it back, with a manifest of SHA-256"
    extract = actions.add_parser("extract", help=summary, description=summary, parents=[common], allow_abbrev=False)
    extract.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="directory or file")
    extract.add_argument("--to", metavar="DIR", type=Path, required=True, help="directory outside of what is read")
    extract.add_argument("--only", metavar="VERDICTS", type=_verdicts, default=DEFAULT_VERDICTS,
                         help="verdicts to copy, separated by commas (default: verified,intact)")
    summary = "every tensor that is still good, from a damaged checkpoint into a new safetensors file"
    salvage = actions.add_parser("salvage", help=summary, description=summary, parents=[common], allow_abbrev=False)
    salvage.add_argument("path", metavar="PATH", type=Path, help="one checkpoint: a file, a directory or a prefix")
    salvage.add_argument("--to", metavar="DIR", type=Path, required=True, help="directory outside of the checkpoint")
    for action in (scan, extract, salvage):
        action.add_argument("--mapfile", metavar="FILE", type=Path,
                            help="ddrescue's mapfile of the image that is mounted there (that of a case is found)")
        action.add_argument("--map-offset", metavar="BYTES", type=_offset,
                            help="where in the image the file system begins (a loop device and a partition tell it)")


def _jobs(parser: argparse.ArgumentParser, common: _Parser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    for name, summary in (
        ("list", "every job of this session, newest first"),
        ("attach", "follow a job to its end"),
        ("pause", "stop a job cleanly and keep its place"),
        ("resume", "go on with a paused or interrupted job"),
        ("cancel", "end a job; what was copied stays"),
    ):
        action = actions.add_parser(name, help=summary, description=summary, parents=[common], allow_abbrev=False)
        if name != "list":
            action.add_argument("job", metavar="JOB", help="id of the job; a unique beginning is enough")


def _whole(text: str, low: int, high: int) -> int:
    """A decimal number; Python's own `int` would also take ``1_0``, blanks and other alphabets' digits."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None
    if number is None or not low <= number <= high:
        raise argparse.ArgumentTypeError(f"a whole number from {low} to {high} is needed, not {text!r}")
    return number


def _verdicts(text: str) -> frozenset[Verdict]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = [word for word in words if word not in set(Verdict)]
    if wrong or not words:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong) or 'nothing'} is no verdict; those are "
                                         f"{', '.join(verdict.value for verdict in reversed(Verdict))}")
    return frozenset(Verdict(word) for word in words)


def _partition(text: str) -> int:
    return _whole(text, 1, MAX_PARTITION)


def _offset(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise argparse.ArgumentTypeError(f"a whole number of bytes is needed, not {text!r}")
    return int(text)


def _retries(text: str) -> int:
    return _whole(text, 0, MAX_RETRIES)
