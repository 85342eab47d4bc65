"""Calls that a dead file system can hold for ever, run so that only a thread of no importance hangs.

The threads are daemons: they hold up neither the caller beyond its patience nor the end of the program.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from rescue_tui.core.errors import DeviceError, RescueError

T = TypeVar("T")


class Call(Generic[T]):
    """One call under way in a thread of its own. The function may raise OSError and RescueError, nothing else."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._done = threading.Event()
        self._value: tuple[T] | None = None
        self._error: OSError | RescueError | None = None
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True, name="patience").start()

    def _run(self) -> None:
        try:
            self._value = (self._function(),)
        except (OSError, RescueError) as error:
            self._error = error
        finally:
            with self._lock:
                self._done.set()
                listeners = tuple(self._listeners)
            for listener in listeners:
                listener()

    def wait(self, seconds: float) -> bool:
        """Wait at most so long; True when the call has ended."""
        return self._done.wait(seconds)

    def result(self) -> T:
        """What the call returned or raised (OSError, RescueError). Only after `wait` said True."""
        if self._error is not None:
            raise self._error
        if self._value is None:
            raise RuntimeError("the call has not returned a value")
        return self._value[0]

    def when_done(self, listener: Callable[[], None]) -> None:
        """Call the listener (in the thread, or here when it has ended) at the end."""
        with self._lock:
            if not self._done.is_set():
                self._listeners.append(listener)
                return
        listener()


async def within(seconds: float, what: str, function: Callable[[], T]) -> T:
    """The result of a call that may hang; OSErrors pass, DeviceError when it takes longer. Never blocks the loop."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def tell() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(ended.set)

    call = Call(function)
    call.when_done(tell)
    try:
        await asyncio.wait_for(ended.wait(), seconds)
    except TimeoutError:
        raise DeviceError(f"{what} does not answer (waited {seconds:g} seconds).",
                          "The disk may be gone or failing; look at the kernel log.") from None
    return call.result()
