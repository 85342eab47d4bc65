"""What tests of every kind share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def spare_loop() -> Iterator[None]:
    """An event loop that is the thread's own outside of async tests, and is closed at the end.

    Without one, pytest-asyncio's first look for a loop makes one (``asyncio.get_event_loop``). The first `asyncio.run`
    of a test that isn't async, as the command line does, makes the thread forget it, and a loop that nobody closed is
    an error here, in whatever test the collector of garbage happens to find it.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
