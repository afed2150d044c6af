"""Hosts a coordinator machine on its internal topic: append, replay, then effects and reply.

`broker.durability` decides the order of effects and reply.

Guarantees:

- A machine's records are in the log before it remembers them, and before anybody hears of them; with
  `semel.durability=fsync` they are on disk before anybody hears of them, also from the answer to a retry.
- A partition is loaded by replaying its log before its first request, and every stored partition is loaded soon after
  the start, because what was left prepared must be finished and what was left open must time out.
- A record that cannot be read costs that record: it is named with its offset, and the rest of its partition is served.
- A partition whose log is damaged is not served until a restart: whoever asks for it is told NOT_COORDINATOR.
- When an append fails, the machine is told and its answer to that is what the client gets.
- What was decided and written is carried out, whether or not the client that asked for it is still there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterable, Sequence
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Protocol

from semel.broker.topics.internal import PARTITIONS_OF_INTERNAL_TOPICS
from semel.broker.topics.partition import Partition
from semel.errors import ErrorCode, RecordsRefused, Refused
from semel.machines.contract import Decision, Effect, StateRecord
from semel.machines.values import ProducerIdentity
from semel.records.batch import Batch, read_records, split
from semel.records.building import build, build_pairs
from semel.records.compression import NONE
from semel.records.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TRANSACTIONAL

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)

LOAD_READ_BYTES = 1024 * 1024
#: What reading a record raises that is none, besides `Refused`.
_UNREADABLE = (StructError, ValueError, LookupError, TypeError, OverflowError)
#: Whose records are in no transaction.
NOBODY = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class Machine(Protocol):
    """What a host needs of a coordinator machine."""

    def load(self, partition: int, coordinator_epoch: int) -> None: ...
    def loaded(self, partition: int, now_ms: int) -> list[Decision[Any]]: ...
    def unload(self, partition: int) -> object: ...
    def partition_for(self, key: str, /) -> int: ...
    def tick(self, now_ms: int) -> list[Decision[Any]]: ...
    def next_wake_ms(self) -> int | None: ...


def partition_count(broker: BrokerServer, topic_name: str) -> int:
    """How many partitions ids are spread over: those there are, whatever the setting says by now."""
    topic = broker.topics.topics.get(topic_name)
    count: int = broker.settings[PARTITIONS_OF_INTERNAL_TOPICS[topic_name]]
    return count if topic is None else len(topic.partitions)


class CoordinatorHost:
    """One machine, one internal topic."""

    def __init__(self, broker: BrokerServer, topic_name: str, machine: Machine) -> None:
        self.broker = broker
        self.topic_name = topic_name
        self.machine_to_drive = machine
        #: What the topic's batches are compressed with.
        self.codec = NONE
        self._loaded: set[int] = set()
        self._unreadable: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0

    # Loading

    def ready(self, partition: int) -> bool:
        """Load this partition of the internal topic if nobody has yet; whether it can be served."""
        if partition in self._loaded:
            return True
        if partition not in self._unreadable:
            self._load(partition)
        return partition in self._loaded

    def ready_for(self, key: str) -> bool:
        """Load the partition this group or transactional id lives in; whether it can be served."""
        return self.ready(self.machine_to_drive.partition_for(key))

    def load_all(self) -> Generator[None, None, None]:
        """Load every partition, for questions about all of them, one at a time."""
        topic = self.broker.topics.topics.get(self.topic_name)
        if topic is not None:
            for partition in topic.partitions:
                self.ready(partition.index)
                yield

    async def load_stored(self) -> None:
        """Load what the last run left, a partition at a time so that clients are served in between."""
        topic = self.broker.topics.topics.get(self.topic_name)
        for partition in topic.partitions if topic is not None else ():
            if partition.directory.exists():
                self.ready(partition.index)
                await asyncio.sleep(0)

    def _load(self, index: int) -> None:
        partition = self.broker.internal_topics.get(self.topic_name).partition(index)
        machine = self.machine_to_drive
        machine.load(index, self.broker.leader_epoch)
        if partition.opened is not None or partition.directory.exists():
            try:
                self._replay_log(partition)
            except (Refused, OSError, *_UNREADABLE) as error:
                # Damage. What lives in it cannot be served, and the machine says so; everything else can.
                logger.error("%s-%d cannot be loaded: %s", self.topic_name, index, error)
                self._unreadable.add(index)
                machine.unload(index)
                return
        self._loaded.add(index)
        for decision in machine.loaded(index, self.broker.now_ms()):
            self.settle(decision)
        self.reschedule()

    def _replay_log(self, partition: Partition) -> None:
        log = partition.log
        offset = log.log_start_offset
        while offset < log.end_offset:
            read = log.read(offset, LOAD_READ_BYTES, 0)
            if not len(read.data):
                # Compaction may leave nothing between here and the end of the log.
                break
            for batch in split(read.data):
                self._replay_batch(partition.index, batch)
                offset = batch.next_offset

    def _replay_batch(self, index: int, batch: Batch) -> None:
        """Hand a stored batch to the machine; what cannot be read is told and passed over."""
        offset = batch.base_offset
        try:
            if batch.is_control:
                self.replay_marker(index, batch)
                return
            records = read_records(batch)
        except (Refused, *_UNREADABLE) as error:
            self._passed_over(index, f"the batch at offset {offset}", error)
            return
        owner = ProducerIdentity(batch.producer_id, batch.producer_epoch) if batch.is_transactional else None
        for record in records:
            if record.key is None:
                continue
            try:
                self.replay(StateRecord(index, bytes(record.key), _bytes(record.value)), owner)
            except (Refused, *_UNREADABLE) as error:
                self._passed_over(index, f"the record at offset {record.offset}", error)

    def _passed_over(self, index: int, what: str, error: Exception) -> None:
        logger.error(
            "%s-%d: %s is none that a coordinator writes (%s). It is passed over, and everything else is served. "
            "`semel log dump --records` shows it. If it was meant for a group or a transactional id, commit the "
            "group's offsets again or start the producer again: the next record of the same key takes its place.",
            self.topic_name,
            index,
            what,
            error,
        )

    # What clients write into the internal topic

    def readable(self, index: int, batch: Batch) -> list[StateRecord]:
        """The records of a client's batch, if the coordinator could read each of them here; else `Refused`."""
        if batch.is_transactional:
            raise Refused(ErrorCode.INVALID_RECORD, f"{self.topic_name} takes a transaction's records from nobody else")
        records = []
        for place, record in enumerate(read_records(batch)):
            stored = StateRecord(index, bytes(record.key or b""), _bytes(record.value))
            try:
                key = self.check_readable(stored)
            except (Refused, *_UNREADABLE) as error:
                why = f"record {place} is none that the coordinator of {self.topic_name} could read: {error}"
                raise RecordsRefused(ErrorCode.INVALID_RECORD, why, ((place, why),)) from None
            if self.machine_to_drive.partition_for(key) != index:
                why = f"record {place} is about {key!r}, which does not live in partition {index}"
                raise RecordsRefused(ErrorCode.INVALID_RECORD, why, ((place, why),))
            records.append(stored)
        return records

    def take_in(self, index: int, records: Iterable[StateRecord]) -> None:
        """Remember what a client wrote, so that the coordinator knows now what it would know after a restart."""
        if self.ready(index):
            for record in records:
                self.replay(record, None)
            self.reschedule()

    def check_readable(self, record: StateRecord) -> str:
        """The group or transactional id that a record is about; raises what reading it raises."""
        raise NotImplementedError

    def replay(self, record: StateRecord, producer: ProducerIdentity | None) -> None:
        """Hand a written record to the machine."""
        raise NotImplementedError

    def append_refused(self, decision: Decision[Any], code: ErrorCode) -> Any:
        """Tell the machine that these records could not be written; what to answer instead."""
        raise NotImplementedError

    def replay_marker(self, partition: int, batch: Any) -> None:
        """A control batch was found while loading; only hosts whose records may be transactional care."""

    # Deciding

    def answer(self, decision: Decision[Any], *keys: str) -> Any:
        """Write a decision and carry it out. Returns the reply, or a coroutine that gives it.

        `broker.durability` decides the order of effects and reply. `keys` are the groups or transactional ids that the
        reply is about: what was written about them earlier may still be on its way to the disk.
        """
        reply, written = self._write(decision)
        return self.broker.durability.answer(self, decision, reply, keys) if written else reply

    def settle(self, decision: Decision[Any]) -> Any:
        """Carry out a decision whose reply is wanted now, if anybody wants it; only its effects wait for the disk."""
        reply, written = self._write(decision)
        if written:
            self.broker.durability.settle(self, decision)
        return reply

    def once_on_disk(self, reply: Any, indexes: Iterable[int]) -> Any:
        """The reply, or a coroutine that gives it once everything written to these partitions so far is durable."""
        return self.broker.durability.reply_once_durable(self, reply, indexes)

    async def on_disk(self, *keys: str) -> None:
        """Return once everything written about these keys so far is durable."""
        await self.broker.durability.wait(self, self.partitions_of(keys))

    def partitions_of(self, keys: Iterable[str]) -> set[int]:
        """The partitions of the internal topic that these groups or transactional ids live in."""
        return {self.machine_to_drive.partition_for(key) for key in keys}

    def unflushed(self, indexes: Iterable[int]) -> list[Partition]:
        """Those of these partitions that hold something the disk does not have yet (with fsync)."""
        topic = self.broker.topics.topics.get(self.topic_name)
        if topic is None:
            return []
        found = []
        for index in indexes:
            partition = topic.partitions[index]
            # With fsync the high watermark follows the disk.
            if partition.opened is not None and partition.opened.high_watermark < partition.opened.end_offset:
                found.append(partition)
        return found

    def not_on_disk(self) -> Refused:
        """What to answer when an fsync of the internal topic failed."""
        return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic_name} could not be written to disk")

    def is_awaited(self, effects: tuple[Effect, ...]) -> bool:
        """Whether somebody waits for what these effects do: then they come before the reply."""
        raise NotImplementedError

    def _write(self, decision: Decision[Any]) -> tuple[Any, bool]:
        """Append and replay; the reply, and whether everything was written."""
        if not decision.records:
            self.reschedule()
            return decision.reply, True
        written = True
        by_partition: dict[int, list[StateRecord]] = {}
        for record in decision.records:
            by_partition.setdefault(record.partition, []).append(record)
        reply = decision.reply
        for index, records in by_partition.items():
            try:
                self._append(index, records, decision.producer)
            except (Refused, OSError) as error:
                if self.broker.topics.gone is None:  # that was told once
                    logger.warning("append to %s-%d failed: %s", self.topic_name, index, error)
                code = error.code if isinstance(error, Refused) else ErrorCode.KAFKA_STORAGE_ERROR
                reply = self.append_refused(
                    Decision(decision.reply, tuple(records), decision.effects, decision.producer), code
                )
                written = False
                continue
            for record in records:
                self.replay(record, decision.producer)
        self.reschedule()
        return reply, written

    def _append(self, index: int, records: Sequence[StateRecord], producer: ProducerIdentity | None) -> None:
        now_ms = self.broker.now_ms()
        partition = self.broker.internal_topics.get(self.topic_name).partition(index)
        pairs = [(key, value) for _, key, value in records]
        producer_id, producer_epoch = producer or NOBODY
        data: bytes | bytearray
        if self.codec:
            data = build(
                pairs,
                timestamp_ms=now_ms,
                codec=self.codec,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=producer is not None,
            )
        else:
            data = build_pairs(
                pairs,
                now_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                attributes=0 if producer is None else TRANSACTIONAL,
            )
        try:
            partition.log.append_internal(data, now_ms)
        except Refused as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE or not _can_be_parted(records):
                raise
            half = len(records) // 2
            self._append(index, records[:half], producer)
            self._append(index, records[half:], producer)
        partition.changed()

    def perform_all(self, effects: tuple[Effect, ...]) -> None:
        """Do everything a decision asks for, in its order."""
        for effect in effects:
            self.perform(effect)

    def perform(self, effect: Effect) -> None:
        """Do what the machine asked for; hosts add what is theirs."""
        raise NotImplementedError

    # Time

    def reschedule(self) -> None:
        """See to it that `tick` comes when the machine next wants it."""
        at_ms = self.machine_to_drive.next_wake_ms()
        if at_ms is None or (self._timer is not None and self._timer_at_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = max(0, at_ms - self.broker.now_ms())
        self._timer_at_ms = at_ms
        self._timer = self.broker.loop.call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.broker.fatal_error is not None:
            return
        for decision in self.machine_to_drive.tick(self.broker.now_ms()):
            self.settle(decision)
        self.reschedule()

    def stop(self) -> None:
        """No more ticks."""
        if self._timer is not None:
            self._timer.cancel()


def _can_be_parted(records: Sequence[StateRecord]) -> bool:
    """Tombstones need not be written at once: each stands for itself."""
    return len(records) > 1 and all(record.value is None for record in records)


def _bytes(value: bytes | memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)
