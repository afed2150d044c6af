"""The order of disk, effects and reply, as `semel.broker.durability` decides it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from types import CoroutineType
from typing import Any

import pytest

from semel.broker.after_reply import AfterReply
from semel.broker.durability import Durability, FsyncDurability, OsDurability
from semel.broker.embedded import Broker
from semel.errors import ErrorCode, Refused
from semel.machines.contract import Decision, Effect, StateRecord
from tests.broker.raw import Raw, batch, produce_request, until

DECISION = Decision("reply", (StateRecord(0, b"key", b"value"),), (Effect(),))


class FakeHost:
    """Writes down what a policy asks of it. A reader waits for the effects, if `reader` is set."""

    def __init__(
        self, events: list[str], performed: asyncio.Event, reader: asyncio.Future[None] | None = None
    ) -> None:
        self._events = events
        self._performed = performed
        self._reader = reader
        self.performers = {Effect: self}

    def is_awaited(self, effect: Effect) -> bool:
        return self._reader is not None

    def perform(self, effect: Effect) -> None:
        self._events.append("effects")
        self._performed.set()
        if self._reader is not None:
            self._reader.set_result(None)

    def partitions_of(self, keys: Iterable[str]) -> set[int]:
        return {0} if tuple(keys) else set()

    def unflushed(self, indexes: Iterable[int]) -> list[str]:
        return [f"partition {index}" for index in indexes]

    def not_on_disk(self) -> Refused:
        return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not on disk")


class FakeFlusher:
    """A disk that can be slow, and can fail."""

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self.failed: frozenset[str] = frozenset()
        self.let_go = asyncio.Event()
        self.let_go.set()

    async def flush(self, partitions: Iterable[str]) -> frozenset[str]:
        await self.let_go.wait()
        if list(partitions):
            self._events.append("flush")
        return self.failed


class Scene:
    """A policy, and everything that happens, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.performed = asyncio.Event()
        self.flusher: Any = FakeFlusher(self.events)
        self.after_reply = AfterReply(lambda: True)
        self.host: Any = FakeHost(self.events, self.performed)
        self._tasks: set[asyncio.Task[Any]] = set()

    def os(self) -> Durability:
        return OsDurability(self.flusher, self.after_reply)

    def fsync(self) -> Durability:
        return FsyncDurability(self.flusher, self._spawn)

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        return task

    def with_reader(self) -> asyncio.Task[None]:
        """Let a reader wait for the effects."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.host = FakeHost(self.events, self.performed, woken)

        async def read() -> None:
            await woken
            self.events.append("reader")

        return self._spawn(read())

    async def send(self, reply: Any) -> None:
        """What a connection does: an immediate reply goes out at once, a coroutine gets a task."""
        if type(reply) is CoroutineType:
            reply = await asyncio.get_running_loop().create_task(reply)
        self.events.append(str(reply))


def run(play: Callable[[Scene], Coroutine[Any, Any, None]]) -> list[str]:
    async def scene() -> list[str]:
        stage = Scene()
        async with asyncio.timeout(20):
            await play(stage)
        return stage.events

    return asyncio.run(scene())


def test_without_readers_the_reply_comes_first_and_the_effects_before_the_next_request() -> None:
    async def play(scene: Scene) -> None:
        await scene.send(scene.os().answer(scene.host, DECISION, "reply", ()))
        scene.after_reply.run_all()  # as dispatch does when a request arrives
        scene.events.append("next request")
        await asyncio.sleep(0)

    assert run(play) == ["reply", "effects", "next request"]


def test_without_a_next_request_the_effects_follow_by_themselves() -> None:
    async def play(scene: Scene) -> None:
        await scene.send(scene.os().answer(scene.host, DECISION, "reply", ()))
        await scene.performed.wait()

    assert run(play) == ["reply", "effects"]


def test_readers_who_wait_are_served_before_the_sender() -> None:
    async def play(scene: Scene) -> None:
        reader = scene.with_reader()
        await asyncio.sleep(0)
        await scene.send(scene.os().answer(scene.host, DECISION, "reply", ()))
        assert reader.done()

    assert run(play) == ["effects", "reader", "reply"]


def test_a_decision_without_effects_is_answered_at_once() -> None:
    async def play(scene: Scene) -> None:
        scene.with_reader().cancel()
        assert scene.os().answer(scene.host, Decision("reply"), "reply", ()) == "reply"
        assert not scene.after_reply.steps

    assert run(play) == []


def test_with_fsync_the_records_are_on_disk_before_effects_and_reply() -> None:
    async def play(scene: Scene) -> None:
        await scene.send(scene.fsync().answer(scene.host, DECISION, "reply", ()))

    assert run(play) == ["flush", "effects", "reply"]


def test_with_fsync_the_effects_happen_although_the_sender_is_gone() -> None:
    async def play(scene: Scene) -> None:
        scene.flusher.let_go.clear()
        waiting = asyncio.get_running_loop().create_task(scene.fsync().answer(scene.host, DECISION, "reply", ()))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        scene.flusher.let_go.set()
        await scene.performed.wait()

    assert run(play) == ["flush", "effects"]


def test_with_fsync_a_disk_that_fails_has_no_effects_and_no_reply() -> None:
    async def play(scene: Scene) -> None:
        scene.flusher.failed = frozenset(("partition 0",))
        with pytest.raises(Refused, match="not on disk"):
            await scene.send(scene.fsync().answer(scene.host, DECISION, "reply", ()))

    assert run(play) == ["flush"]


def test_with_fsync_a_reply_about_earlier_records_waits_for_them_too() -> None:
    async def play(scene: Scene) -> None:
        await scene.send(scene.fsync().answer(scene.host, Decision("reply"), "reply", ("payments",)))
        await scene.send(scene.fsync().answer(scene.host, Decision("at once"), "at once", ()))

    assert run(play) == ["flush", "reply", "at once"]


def test_markers_are_reported_after_the_readers_they_woke() -> None:
    class Watched:
        def __init__(self, watchers: set[str]) -> None:
            self.watchers = watchers

    async def play(scene: Scene) -> None:
        policy: Any = scene.os()
        policy.once_durable([Watched(set())], lambda failed: scene.events.append("nobody waited"))
        policy.once_durable([Watched({"reader"})], lambda failed: scene.events.append("reported"))
        scene.events.append("readers are served")
        scene.after_reply.run_all()

    assert run(play) == ["nobody waited", "readers are served", "reported"]


def test_no_step_runs_after_a_broken_invariant() -> None:
    done: list[str] = []

    async def play() -> None:
        after_reply = AfterReply(lambda: False)
        after_reply.add(lambda: done.append("step"))
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(play())
    assert done == []


def test_flush_messages_holds_for_a_producer_that_wants_no_answer(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t", flush_messages="1")
        raw.send(produce_request("t", batch(b"careful"), acks=0), 12)
        log = broker.server.topics.partition("t", 0).log
        until(lambda: log.flusher.recovery_point == 1, what="the fsync")
