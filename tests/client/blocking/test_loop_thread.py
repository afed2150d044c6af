"""A loop in a thread of its own: whoever waits for it hears of its end, whatever the moment."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest

from semel.client.blocking.loop_thread import LoopThread
from semel.errors import Misuse, RequestTimedOut


async def _answer() -> int:
    return 42


def test_a_call_that_races_with_closing_is_answered_or_told() -> None:
    for _ in range(300):
        loop = LoopThread("test")

        def call(loop: LoopThread = loop) -> None:
            with pytest.raises(Misuse, match="closed"):
                while True:
                    assert loop.run(_answer()) == 42

        caller = threading.Thread(target=call, daemon=True)
        caller.start()
        loop.close()
        caller.join(10)
        assert not caller.is_alive(), "the caller waits for a loop that has ended"


def test_a_wait_may_have_an_end() -> None:
    loop = LoopThread("test")
    stopped = threading.Event()

    async def linger() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            stopped.set()

    with pytest.raises(RequestTimedOut, match="test: still at it after 50 ms"):
        loop.run(linger(), timeout_ms=50)
    assert stopped.wait(10)  # and what was waited for is cancelled
    assert loop.run(_answer(), timeout_ms=10_000) == 42
    loop.close()


def test_a_timeout_of_the_work_itself_passes_as_it_is() -> None:
    loop = LoopThread("test")

    async def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        loop.run(fail(), timeout_ms=60_000)
    loop.close()


def test_work_that_will_not_be_cancelled_does_not_keep_a_close_waiting() -> None:
    loop = LoopThread("test")
    begun = threading.Event()

    async def stubborn() -> None:
        while True:
            try:
                begun.set()
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                continue

    told = threading.Event()

    def wait_for_it() -> None:
        with pytest.raises(Misuse, match="closed during the call"):
            loop.run(stubborn())
        told.set()

    threading.Thread(target=wait_for_it, daemon=True).start()
    assert begun.wait(10)
    since = time.monotonic()
    loop.close(patience_s=0.2)
    assert time.monotonic() - since < 10
    assert told.wait(10)


def test_closing_twice_and_from_two_threads_does_no_harm() -> None:
    loop = LoopThread("test")
    others = [threading.Thread(target=loop.close) for _ in range(4)]
    for other in others:
        other.start()
    loop.close()
    for other in others:
        other.join(10)
        assert not other.is_alive()
    assert loop.is_closed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exit_inside_a_callback_ends_the_loop_and_whoever_waits_is_told() -> None:
    loop = LoopThread("test")

    async def leave() -> None:
        asyncio.get_running_loop().call_soon(sys.exit)
        await asyncio.sleep(600)

    with pytest.raises(Misuse, match="test was closed during the call"):
        loop.run(leave())
    with pytest.raises(Misuse, match="test is closed"):
        loop.run(_answer())
    loop.close()
