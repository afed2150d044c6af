"""What "written" means in a cluster: the high watermark has passed it (C1). The order that follows from it:

    1. the decision's records are on every in-sync replica
    2. all effects
    3. the reply

Guarantees:

- No client learns of a coordinator's record that is not committed, from a reply, from the reply to a retry, or by a
  question. Nothing that follows from it is written before either.
- Who waits when this broker no longer leads is told NOT_COORDINATOR, and what was not committed is forgotten with the
  partition. Who has waited too long is told COORDINATOR_NOT_AVAILABLE; the decision is carried out once committed.
- A decision of an earlier leadership is not carried out under a later one, which has loaded it and does it by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from semel.broker.durability import OsDurability, Spawn, perform_all, refuse_parked
from semel.broker.replication.partition import ReplicatedPartition
from semel.errors import ErrorCode, Refused
from semel.machines.internal_topics import after_failed_append

if TYPE_CHECKING:
    from semel.broker.after_reply import AfterReply
    from semel.broker.coordinators.host import CoordinatorHost
    from semel.broker.flusher import Flusher
    from semel.broker.topics.partition import Partition
    from semel.broker.topics.topic import Topic
    from semel.machines.contract import Decision

#: How long a reply waits for the replicas. Then the client has to ask again.
MOST_WAITED_S = 10.0

#: A partition of the internal topic, the coordinator epoch that it was written under, and when that is committed.
_Wait = tuple[int, int, asyncio.Future[ErrorCode]]


def committed(partition: Partition) -> asyncio.Future[ErrorCode]:
    """Done when everything that this partition holds now is committed."""
    assert isinstance(partition, ReplicatedPartition)
    replica = partition.replica
    if replica is None:
        lost: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        lost.set_result(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return lost
    return replica.committed(replica.log.end_offset)


async def all_committed(partitions: Iterable[Partition]) -> dict[Partition, ErrorCode]:
    """NONE for each whose records are committed within `MOST_WAITED_S`, or why they are not."""
    waits = {partition: committed(partition) for partition in partitions}
    await _all_of(waits.values())
    return {
        partition: wait.result() if wait.done() else ErrorCode.REQUEST_TIMED_OUT for partition, wait in waits.items()
    }


class ReplicatedDurability(OsDurability):
    """With `zookeeper.connect`: what all in-sync replicas have is durable, and nothing else is acknowledged."""

    coordinator_first = True

    def __init__(self, flusher: Flusher, after_reply: AfterReply, spawn: Spawn) -> None:
        super().__init__(flusher, after_reply)
        self._spawn = spawn

    # Partitions

    def once_durable(self, written: Collection[Partition], then: Callable[[frozenset[Partition]], None]) -> None:
        self._spawn(self._commit_then([(partition, committed(partition)) for partition in written], then))

    @staticmethod
    async def _commit_then(
        waits: list[tuple[Partition, asyncio.Future[ErrorCode]]], then: Callable[[frozenset[Partition]], None]
    ) -> None:
        failed = set()
        for partition, wait in waits:
            if await wait is not ErrorCode.NONE:
                failed.add(partition)
        then(frozenset(failed))

    # Coordinators

    def answer(self, host: CoordinatorHost, decision: Decision[Any], reply: Any, keys: Iterable[str]) -> Any:
        if decision.records:
            waits = self._waits(host, {record.partition for record in decision.records})
            performed = self._spawn(self._perform_once_committed(host, decision, waits))
            return self._reply_after(host, performed, reply)
        perform_all(host, decision)
        return self.reply_once_durable(host, reply, host.partitions_of(keys))

    def settle(self, host: CoordinatorHost, decision: Decision[Any]) -> None:
        if not decision.records:
            perform_all(host, decision)
        elif decision.effects:
            waits = self._waits(host, {record.partition for record in decision.records})
            self._spawn(self._perform_once_committed(host, decision, waits))

    @staticmethod
    def _waits(host: CoordinatorHost, indexes: Iterable[int]) -> list[_Wait]:
        return [
            (index, host.epochs[index], committed(host.loaded[index])) for index in indexes if index in host.loaded
        ]

    @staticmethod
    async def _perform_once_committed(
        host: CoordinatorHost, decision: Decision[Any], waits: list[_Wait]
    ) -> ErrorCode:
        """Perform the effects once the records are committed. Returns why they are not."""
        code = ErrorCode.NONE
        for _, _, wait in waits:
            if await wait is not ErrorCode.NONE:
                code = wait.result()
        if code is ErrorCode.NONE and all(host.epochs.get(index) == epoch for index, epoch, _ in waits):
            perform_all(host, decision)
            return code
        refuse_parked(host, decision, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return code

    @staticmethod
    async def _reply_after(host: CoordinatorHost, performed: asyncio.Task[ErrorCode], reply: Any) -> Any:
        # This coroutine ends with the client's connection, the decision does not.
        done, _ = await asyncio.wait((performed,), timeout=MOST_WAITED_S)
        code = performed.result() if done else ErrorCode.REQUEST_TIMED_OUT
        return reply if code is ErrorCode.NONE else host.coordinator.refused_reply(reply, code)

    def reply_once_durable(self, host: CoordinatorHost, reply: Any, indexes: Iterable[int]) -> Any:
        waits = [wait for _, _, wait in self._waits(host, indexes) if not _is_done(wait)]
        return self._reply_once_committed(host, reply, waits) if waits else reply

    async def _reply_once_committed(
        self, host: CoordinatorHost, reply: Any, waits: list[asyncio.Future[ErrorCode]]
    ) -> Any:
        code = await _all_of(waits)
        return reply if code is ErrorCode.NONE else host.coordinator.refused_reply(reply, code)

    async def wait(self, host: CoordinatorHost, indexes: Iterable[int]) -> None:
        code = await _all_of([wait for _, _, wait in self._waits(host, indexes)])
        if code is not ErrorCode.NONE:
            why = f"{host.topic_name} could not be replicated: {code.name}"
            raise Refused(after_failed_append(code), why)


class ReplicatedFsyncDurability(ReplicatedDurability):
    """With `semel.durability=fsync` besides: the high watermark passes what is on the disks of all in-sync replicas.

    A leader counts itself only as far as its own disk (`LeaderReplica.durable_offset`), and a follower fetches on only
    when its disk has what it fetched (R10). So all that is above follows from the high watermark here, too.
    """

    high_watermark_follows_end = False

    def promises_fsync(self, topic: Topic) -> bool:
        return True

    def to_flush(self, written: Iterable[Partition]) -> list[Partition]:
        return list(written)


def _is_done(wait: asyncio.Future[ErrorCode]) -> bool:
    return wait.done() and wait.result() is ErrorCode.NONE


async def _all_of(waits: Collection[asyncio.Future[ErrorCode]]) -> ErrorCode:
    """NONE once all are committed, or why not. At most `MOST_WAITED_S`."""
    pending = [wait for wait in waits if not wait.done()]
    if pending:
        await asyncio.wait(pending, timeout=MOST_WAITED_S)
    for wait in waits:
        if not wait.done():
            return ErrorCode.REQUEST_TIMED_OUT
        if wait.result() is not ErrorCode.NONE:
            return wait.result()
    return ErrorCode.NONE
