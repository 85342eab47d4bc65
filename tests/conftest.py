"""What tests of every kind share."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture
def main_loop() -> Iterator[None]:
    """For a test that isn't async and calls `asyncio.run`, as the command line does.

    `asyncio.run` makes the thread forget the loop that pytest-asyncio keeps for the next test, and a loop that nobody
    closes is an error here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            kept: asyncio.AbstractEventLoop | None = asyncio.get_event_loop_policy().get_event_loop()
        except RuntimeError:
            kept = None
    yield
    asyncio.set_event_loop(kept)
