"""The command line: what each verb asks of the services, what it prints, and which status it ends with."""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rescue_tui import __version__, cli_checkpoints_copy
from rescue_tui.cli_args import parse, verb_of, wants_json
from rescue_tui.cli_documents import (
    NO_GUARD,
    UNKNOWN_GUARD,
    UNKNOWN_ROLE,
    devices_document,
    gate_fields,
    guard_document,
    guard_status,
    guard_words,
    image_document,
    job_fields,
    relative,
)
from rescue_tui.cli_follow import Reading, exit_status, follow
from rescue_tui.cli_output import Output
from rescue_tui.cli_text import (
    DEVICE_HEADS,
    GRANTED_HEADS,
    JOB_HEADS,
    device_lines,
    device_row,
    end_words,
    finding_words,
    gate_row,
    granted_row,
    guard_lines,
    job_row,
    plan_lines,
    stopped_lines,
    verdict_lines,
)
from rescue_tui.core.device import Disk, Health
from rescue_tui.core.errors import (
    CommandError,
    DeviceError,
    ExitStatus,
    PolicyRefusal,
    RescueError,
    SetupError,
    SpaceError,
    UsageError,
)
from rescue_tui.core.job import JobRecord
from rescue_tui.core.record import document
from rescue_tui.core.snapshot import Snapshot
from rescue_tui.core.text import human_bytes
from rescue_tui.jobs.imaging import ImagingOptions
from rescue_tui.services import Services

_HEALTH_AT_ONCE = 8
# What touches devices for more than a look; the rest works for anybody, on a workstation too.
_NEED_ROOT = frozenset({"image", "mount", "unmount", "collect",
                        "destination grant", "destination format", "destination mount", "destination release"})

Verb = Callable[[Services, argparse.Namespace, Output], Coroutine[None, None, ExitStatus]]


class InterruptedCall(RescueError):
    """Somebody pressed Ctrl-C."""

    status = ExitStatus.INTERRUPTED


def run(argv: Sequence[str], services: Callable[[], Services], tui: Callable[[Services], int]) -> int:
    """Do what ``argv`` (without the program's name) asks and return the exit status; never raises RescueError.

    ``services`` makes the services when the arguments are good; ``tui`` runs the interface when there is no verb.
    """
    output = Output(sys.stdout, sys.stderr, as_json=wants_json(argv))
    verb = verb_of(argv)
    try:
        try:
            status = _answer(argv, services, tui, output)
        except RescueError as error:
            status = _end(output, verb, error)
        except KeyboardInterrupt:
            status = _end(output, verb, InterruptedCall("Interrupted.", "Jobs go on; `stasis jobs list` shows them."))
        output.flush()
        return status
    except BrokenPipeError:
        # The reader went away, as `head` does: no words.
        status = int(ExitStatus.INTERRUPTED)
    except OSError as error:
        with suppress(OSError):
            output.say(f"The answer can't be written: {error.strerror}.")
        status = int(_refusal(error).status)
    # Nothing may be left for Python to flush at its exit, which would fail again.
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.stdout.fileno())
    return status


def _answer(
    argv: Sequence[str], services: Callable[[], Services], tui: Callable[[Services], int], output: Output
) -> int:
    arguments = parse(argv)
    if arguments.verb is None:
        _need_terminal()
        return tui(services())
    refuse(arguments, is_root=os.geteuid() == 0)
    try:
        return int(asyncio.run(VERBS[arguments.verb](services(), arguments, output)))
    except OSError as error:
        # What no layer below has put into words. Without a file name it is about our own streams, see `run`.
        if not error.filename:
            raise
        raise _refusal(error) from error


def _refusal(error: OSError) -> RescueError:
    """What the system refused, as an error with the status that fits."""
    words = f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    if error.errno in {errno.EACCES, errno.EPERM}:
        return SetupError(words, "Run as root.")
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return SpaceError(words, "Make room, then try again.")
    if error.errno in {errno.EIO, errno.ENXIO, errno.ENODEV}:
        return DeviceError(words, "The kernel log tells more.")
    return CommandError(words)


def crashed(argv: Sequence[str], what: str) -> int:
    """Tell of a mistake in Stasis itself (``what`` in one line) in the mode that ``argv`` asks for; the exit status."""
    error = CommandError(f"Stasis {__version__} has a mistake: {what}.",
                         "Please report it. Jobs go on; `stasis jobs list` shows them.")
    return _end(Output(sys.stdout, sys.stderr, as_json=wants_json(argv)), verb_of(argv), error)


def _end(output: Output, verb: str, error: RescueError) -> int:
    output.error(verb, error)
    return int(error.status)


def _need_terminal() -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("Without a verb, stasis needs a terminal.", "`stasis --help` lists the verbs for scripts.")


def refuse(arguments: argparse.Namespace, *, is_root: bool) -> None:
    """Raise PolicyRefusal for a writable mount, SetupError when the verb needs root and we aren't."""
    if arguments.verb == "mount":
        asked = {word for options in arguments.options for word in options.split(",") if word}
        if arguments.rw or asked - {"ro"}:
            words = ", ".join(sorted(asked - {"ro"})) or "--rw"
            raise PolicyRefusal(
                f"{words}: Stasis mounts sources and images read-only, with options that it picks itself.",
                "Leave the option out. To write, grant a disk: `stasis destination grant`.")
    name = f"{arguments.verb} {getattr(arguments, 'action', '')}".strip()
    if name in _NEED_ROOT and not is_root:
        raise SetupError(f"`stasis {name}` needs root.", "Run it as root or with sudo.")


# devices and guard ---------------------------------------------------------------------------------------------------
async def _devices(services: Services, arguments: argparse.Namespace, output: Output) -> ExitStatus:
    await _show_devices(services, arguments, output)
    if arguments.watch:
        try:
            async for _ in services.changes():
                output.line()
                await _show_devices(services, arguments, output)
        except asyncio.CancelledError:
            # Ctrl-C is how a watch ends; the last answer stands.
            return ExitStatus.INTERRUPTED
    return ExitStatus.GOOD


async def _show_devices(services: Services, arguments: argparse.Namespace, output: Output) -> None:
    snapshot = await services.snapshot()
    if arguments.device is not None:
        snapshot = Snapshot(snapshot.taken_at, (snapshot.find(arguments.device),), snapshot.boot_part_uuid)
    healths = await gather_health(services.health, snapshot.disks) if arguments.health else {}
    roles = services.roles(snapshot)
    guard = guard_words(services.guard_state())
    output.document(devices_document(snapshot, roles, healths, guard))
    if arguments.device is not None:
        for disk in snapshot.disks:
            output.lines(device_lines(disk, roles.get(disk.id, UNKNOWN_ROLE), healths.get(disk.node),
                                      guard.get(disk.node, UNKNOWN_GUARD)))
        return
    output.table(DEVICE_HEADS, [device_row(disk, roles.get(disk.id, UNKNOWN_ROLE), healths.get(disk.node))
                                for disk in snapshot.disks], right=("SIZE",))
    if not snapshot.disks:
        output.line("No disks.")
    output.lines([finding_words(finding) for finding in snapshot.findings])


async def gather_health(ask: Callable[[Disk], Awaitable[Health]], disks: Sequence[Disk]) -> Mapping[str, Health]:
    """The health of every disk by node, a few at once, so that one slow disk holds up nobody else."""
    slots = asyncio.Semaphore(_HEALTH_AT_ONCE)

    async def one(disk: Disk) -> tuple[str, Health]:
        async with slots:
            return disk.node, await ask(disk)

    return dict(await asyncio.gather(*(one(disk) for disk in disks)))


async def _guard(services: Services, _arguments: argparse.Namespace, output: Output) -> ExitStatus:
    state = services.guard_state()
    status = guard_status(state)
    output.document(guard_document(state))
    output.marked(guard_lines(state))
    if status is ExitStatus.SETUP:
        output.say(str(NO_GUARD))
    return status


# destination ---------------------------------------------------------------------------------------------------------
async def _destination(services: Services, arguments: argparse.Namespace, output: Output) -> ExitStatus:
    snapshot = await services.snapshot()
    if arguments.action == "list":
        return _list_destinations(services, snapshot, output)
    disk = snapshot.find(arguments.device)
    fields: dict[str, object] = {"action": arguments.action, "identity": disk.id, "node": disk.node}
    match arguments.action:
        case "grant":
            grant = await services.grant(disk, arguments.confirm, internal=arguments.internal)
            fields |= {"granted_at": grant.granted_at, "serial": grant.serial}
            words = (f"{disk.node} is granted. Next: `stasis destination mount {disk.node}`, "
                     "or `format` first when it is blank.")
        case "format":
            await services.format_destination(disk, arguments.filesystem, arguments.confirm)
            fields |= {"filesystem": arguments.filesystem}
            words = f"{disk.node} has a new {arguments.filesystem}. Next: `stasis destination mount {disk.node}`."
        case "mount":
            space = await services.mount_destination(disk, arguments.part)
            fields |= {"space": space}
            words = (f"{disk.node} is mounted at {space.mount_point}: {space.filesystem}, "
                     f"{human_bytes(space.free_bytes)} free.")
        case _:
            await services.release_destination(disk)
            words = f"{disk.node} is released and read-only again; it may be unplugged."
    output.document(document("destination", **fields))
    output.line(words)
    return ExitStatus.GOOD


def _list_destinations(services: Services, snapshot: Snapshot, output: Output) -> ExitStatus:
    states = services.destination_states()
    granted = {state.device_id for state in states}
    gates = [(disk, services.gate(snapshot, disk)) for disk in snapshot.disks if disk.id not in granted]
    output.document(document("destination", action="list", destinations=states,
                             candidates=[gate_fields(disk, decision) for disk, decision in gates]))
    output.table(GRANTED_HEADS, [granted_row(state) for state in states], right=("FREE",))
    if states and gates:
        output.line()
    output.table(("DEVICE", "SERIAL", "SIZE", "MAY BE GRANTED"), [gate_row(disk, decision) for disk, decision in gates],
                 right=("SIZE",))
    return ExitStatus.GOOD


# imaging and jobs ----------------------------------------------------------------------------------------------------
async def _image(services: Services, arguments: argparse.Namespace, output: Output) -> ExitStatus:
    snapshot = await services.snapshot()
    disks = [snapshot.find(source) for source in arguments.sources]
    if len({disk.id for disk in disks}) != len(disks):
        raise UsageError("A source is named twice.", "Name each disk once.")
    options = ImagingOptions(retries=arguments.retries, resume=arguments.resume,
                             accept_partial=arguments.accept_partial)
    # All plans before the first start: what is refused for the last source must not leave the first one running.
    plans = await services.plan_images(disks, arguments.to.absolute(), options)
    for plan in plans:
        output.lines([*plan_lines(plan), ""])
    if arguments.dry_run:
        output.document(image_document(plans, (), dry_run=True, detached=False, exit_status=ExitStatus.GOOD))
        return ExitStatus.GOOD
    records: list[JobRecord] = []
    try:
        for plan in plans:
            records.append(await services.start_image(plan))
    except RescueError:
        for record in records:
            output.say(f"{record.id} was started and goes on; `stasis jobs attach {record.id}` follows it.")
        raise
    if arguments.detach:
        output.document(image_document(plans, records, dry_run=False, detached=True, exit_status=ExitStatus.GOOD))
        for record in records:
            output.line(f"{record.id} runs; `stasis jobs attach {record.id}` follows it.")
        return ExitStatus.GOOD
    ended, interrupted, status = await _wait(services, records, output)
    output.document(image_document(plans, ended, dry_run=False, detached=interrupted, exit_status=status))
    return status


async def _wait(
    services: Services, records: Sequence[JobRecord], output: Output
) -> tuple[tuple[JobRecord, ...], bool, ExitStatus]:
    ended, interrupted = await follow(services.job, records, output)
    for record in ended:
        if interrupted:
            output.say(f"{record.id} goes on; `stasis jobs attach {record.id}` follows it again.")
        else:
            output.line(end_words(record))
    return ended, interrupted, ExitStatus.INTERRUPTED if interrupted else exit_status(ended)


async def _jobs(services: Services, arguments: argparse.Namespace, output: Output) -> ExitStatus:
    match arguments.action:
        case "list":
            records = services.job_records()
            output.document(document("jobs", action="list", jobs=[job_fields(record) for record in records]))
            output.table(JOB_HEADS, [job_row(record) for record in records], right=("DONE", "BAD"))
            output.lines(stopped_lines(records))
            if not records:
                output.line("No jobs.")
            return ExitStatus.GOOD
        case "attach":
            ended, interrupted, status = await _wait(services, (services.job(arguments.job),), output)
            output.document(document("jobs", action="attach", detached=interrupted, exit=status,
                                     jobs=[job_fields(record) for record in ended]))
            return status
        case "pause":
            record = await services.pause_job(services.job(arguments.job).id)
        case "resume":
            record = await services.resume_job(services.job(arguments.job).id)
        case _:
            record = await services.cancel_job(services.job(arguments.job).id)
    output.document(document("jobs", action=arguments.action, jobs=[job_fields(record)]))
    output.line(f"{record.id} is {record.state.value}.")
    return ExitStatus.GOOD


# case folders and mounts ---------------------------------------------------------------------------------------------
async def _verify(services: Services, arguments: argparse.Namespace, output: Output) -> ExitStatus:
    with Reading(output) as reading:
        verdict = await services.verify(arguments.case.absolute(), reading.tick)
    output.document(document("verify", case=verdict.case, good=verdict.good, exit=verdict.exit_status,
                             checked_files=verdict.checked_files, checked_bytes=verdict.checked_bytes,
                             findings=verdict.findings))
    output.lines(verdict_lines(verdict))
    return verdict.exit_status


async def _report(services: Services, arguments: argparse.Namespace, output: Output) -> ExitStatus:
    page = await services.report(arguments.case.absolute())
    output.document(document("report", case=arguments.case.absolute(), html=page, json=page.with_suffix(".json")))
    output.line(str(page))
    return ExitStatus.GOOD


async def _collect(services: Services, arguments: argparse.Namespace, output: Output) -> ExitStatus:
    to = arguments.to.absolute()
    files = await services.collect(to)
    output.document(document("collect", to=to, files=[relative(path, to) for path in files]))
    output.lines([str(path) for path in files])
    return ExitStatus.GOOD


async def _mount(services: Services, arguments: argparse.Namespace, output: Output) -> ExitStatus:
    # A relative path means a file here; anything else names a device, whose names are no paths below this directory.
    path = Path(arguments.target)
    target = str(path.absolute()) if path.is_file() else arguments.target
    mounted = await services.mount(target, arguments.at.absolute(), part=arguments.part)
    output.document(document("mount", mount=mounted))
    output.line(f"{mounted.target} is mounted at {mounted.at}: {mounted.filesystem}, {','.join(mounted.options)}.")
    if mounted.note:
        output.line(mounted.note)
    return ExitStatus.GOOD


async def _unmount(services: Services, arguments: argparse.Namespace, output: Output) -> ExitStatus:
    at = arguments.at.absolute()
    await services.unmount(at)
    output.document(document("unmount", at=at))
    output.line(f"{at} is unmounted.")
    return ExitStatus.GOOD


VERBS: Mapping[str, Verb] = {
    "devices": _devices, "guard": _guard, "destination": _destination, "image": _image, "verify": _verify,
    "mount": _mount, "unmount": _unmount, "collect": _collect, "report": _report, "jobs": _jobs,
    "checkpoints": cli_checkpoints_copy.run,
}
