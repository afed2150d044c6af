"""What "written" means (`semel.durability`), and the order of disk, effects and reply that follows from it.

This is the only place that decides the order. A coordinator's decision arrives here appended to the internal topic and
replayed into the machine. From there on:

    os     1. effects that somebody waits for: answers to parked requests, markers in partitions with waiting readers
           2. the reply
           3. all other effects (`AfterReply`), before any other request is looked at
    fsync  1. the decision's records are flushed to disk
           2. all effects
           3. the reply

Guarantees:

- `os`: a write is durable when the operating system has it. It survives a crash of the broker, not of the machine.
- `fsync`: no client learns of a write that is not on disk, from a reply, from the reply to a retry, or by
  reading. A coordinator's record is on disk before anything that follows from it is written.
- Both: `flush.messages` of a topic forces an fsync before the reply. Effects are carried out although the client that
  asked for them is gone.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.broker.after_reply import AfterReply
from semel.broker.flusher import Flusher
from semel.errors import ErrorCode
from semel.machines.contract import AnswerParked

if TYPE_CHECKING:
    from semel.broker.coordinators.host import CoordinatorHost
    from semel.broker.topics.partition import Partition
    from semel.broker.topics.topic import Topic
    from semel.machines.contract import Decision

#: Runs a coroutine beside the requests, also when its client is gone.
Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]

_NONE: frozenset[Partition] = frozenset()


class Durability(ABC):
    """Decides when a write counts as durable, and what waits for that."""

    #: Whether the coordinator's record of a transaction must be on disk before the transaction's data is written. Else
    #: a power failure could leave data of a transaction that no coordinator knows, and that is never ended.
    coordinator_first: bool
    #: Whether readers see a record as soon as it is written. If not, the flusher moves the high watermark.
    high_watermark_follows_end: bool

    def __init__(self, flusher: Flusher) -> None:
        self.flusher = flusher

    # Partitions

    @abstractmethod
    def promises_fsync(self, topic: Topic) -> bool:
        """Whether acknowledged records of this topic are on disk: then a power failure must not lose them."""

    @abstractmethod
    def to_flush(self, written: Iterable[Partition]) -> list[Partition]:
        """The partitions that must be flushed before a write to them is acknowledged."""

    @abstractmethod
    def once_durable(self, written: Collection[Partition], then: Callable[[frozenset[Partition]], None]) -> None:
        """Call `then` when these partitions' markers are durable, with those where that failed.

        Readers who were waiting in them are served first.
        """

    # Coordinators

    @abstractmethod
    def answer(self, host: CoordinatorHost, decision: Decision[Any], reply: Any, keys: Iterable[str]) -> Any:
        """Carry out a written decision. Returns the reply, or a coroutine that gives it when its turn has come.

        `keys` are the groups or transactional ids the reply is about: their earlier records count as well.
        """

    @abstractmethod
    def settle(self, host: CoordinatorHost, decision: Decision[Any]) -> None:
        """Carry out a written decision whose reply does not wait, or that has none."""

    @abstractmethod
    def reply_once_durable(self, host: CoordinatorHost, reply: Any, indexes: Iterable[int]) -> Any:
        """The reply, or a coroutine that gives it once these partitions of the internal topic are durable."""

    @abstractmethod
    async def wait(self, host: CoordinatorHost, indexes: Iterable[int]) -> None:
        """Wait until these partitions of the internal topic are durable; `Refused` if they cannot be."""


class OsDurability(Durability):
    """`semel.durability=os`: what the operating system has is durable. Only `flush.messages` waits for the disk."""

    coordinator_first = False
    high_watermark_follows_end = True

    def __init__(self, flusher: Flusher, after_reply: AfterReply) -> None:
        super().__init__(flusher)
        self._after_reply = after_reply

    def promises_fsync(self, topic: Topic) -> bool:
        return topic.flush_messages is not None

    def to_flush(self, written: Iterable[Partition]) -> list[Partition]:
        return [partition for partition in written if partition.flush_is_due]

    def once_durable(self, written: Collection[Partition], then: Callable[[frozenset[Partition]], None]) -> None:
        if any(partition.watchers for partition in written):
            self._after_reply.add(partial(then, _NONE))
        else:
            then(_NONE)

    def answer(self, host: CoordinatorHost, decision: Decision[Any], reply: Any, keys: Iterable[str]) -> Any:
        return _in_a_new_task(reply) if self._perform(host, decision) else reply

    def settle(self, host: CoordinatorHost, decision: Decision[Any]) -> None:
        self._perform(host, decision)

    def _perform(self, host: CoordinatorHost, decision: Decision[Any]) -> bool:
        """Perform the effects now if somebody waits for them, else after the reply. Returns whether it was now."""
        performers = host.performers
        if any(performers[type(effect)].is_awaited(effect) for effect in decision.effects):
            perform_all(host, decision)
            return True
        for effect in decision.effects:
            self._after_reply.add(partial(performers[type(effect)].perform, effect))
        return False

    def reply_once_durable(self, host: CoordinatorHost, reply: Any, indexes: Iterable[int]) -> Any:
        return reply

    async def wait(self, host: CoordinatorHost, indexes: Iterable[int]) -> None:
        return


class FsyncDurability(Durability):
    """`semel.durability=fsync`: what was fsynced is durable, and nothing else is acknowledged or read."""

    coordinator_first = True
    high_watermark_follows_end = False

    def __init__(self, flusher: Flusher, spawn: Spawn) -> None:
        super().__init__(flusher)
        self._spawn = spawn

    def promises_fsync(self, topic: Topic) -> bool:
        return True

    def to_flush(self, written: Iterable[Partition]) -> list[Partition]:
        return list(written)

    def once_durable(self, written: Collection[Partition], then: Callable[[frozenset[Partition]], None]) -> None:
        self._spawn(self._flush_then(written, then))

    async def _flush_then(self, written: Iterable[Partition], then: Callable[[frozenset[Partition]], None]) -> None:
        then(await self.flusher.flush(written))

    def answer(self, host: CoordinatorHost, decision: Decision[Any], reply: Any, keys: Iterable[str]) -> Any:
        if decision.records:
            return self._reply_after(host, self._spawn(self._perform_once_flushed(host, decision)), reply)
        perform_all(host, decision)
        return self.reply_once_durable(host, reply, host.partitions_of(keys))

    @staticmethod
    async def _reply_after(host: CoordinatorHost, performed: asyncio.Task[bool], reply: Any) -> Any:
        # Shielded: this coroutine ends with the client's connection, the decision must not.
        if not await asyncio.shield(performed):
            raise host.not_on_disk()
        return reply

    def settle(self, host: CoordinatorHost, decision: Decision[Any]) -> None:
        if not decision.records:
            perform_all(host, decision)
        elif decision.effects:
            self._spawn(self._perform_once_flushed(host, decision))

    async def _perform_once_flushed(self, host: CoordinatorHost, decision: Decision[Any]) -> bool:
        """Perform the effects once the records are on disk; False if they cannot get there."""
        if await self.flusher.flush(host.unflushed({record.partition for record in decision.records})):
            refuse_parked(host, decision, ErrorCode.KAFKA_STORAGE_ERROR)
            return False
        perform_all(host, decision)
        return True

    def reply_once_durable(self, host: CoordinatorHost, reply: Any, indexes: Iterable[int]) -> Any:
        unflushed = host.unflushed(indexes)
        return self._reply_once_flushed(host, reply, unflushed) if unflushed else reply

    async def _reply_once_flushed(self, host: CoordinatorHost, reply: Any, unflushed: list[Partition]) -> Any:
        if await self.flusher.flush(unflushed):
            raise host.not_on_disk()
        return reply

    async def wait(self, host: CoordinatorHost, indexes: Iterable[int]) -> None:
        if await self.flusher.flush(host.unflushed(indexes)):
            raise host.not_on_disk()


def refuse_parked(host: CoordinatorHost, decision: Decision[Any], code: ErrorCode) -> None:
    """Answer those who wait for a decision that cannot be carried out: its machine has forgotten their requests."""
    for effect in decision.effects:
        if isinstance(effect, AnswerParked):
            refused = host.coordinator.refused_reply(effect.reply, code)
            host.performers[AnswerParked].perform(AnswerParked(effect.token, refused))


def perform_all(host: CoordinatorHost, decision: Decision[Any]) -> None:
    """Perform the effects of a decision in their order."""
    for effect in decision.effects:
        host.performers[type(effect)].perform(effect)


async def _in_a_new_task(reply: Any) -> Any:
    """A coroutine gets a task of its own, which runs after the tasks that were woken before it."""
    return reply
