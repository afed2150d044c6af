"""Runs a coordinator on its internal topic: append, replay, then effects and reply.

One host serves every coordinator that fulfils `machines.contract.Coordinator`. What only one coordinator needs is
given to the host as *performers*: who performs an effect, by the effect's type. `broker.durability` decides the order
of effects and reply.

Guarantees:

- A coordinator's records are in the log before it replays them and before anybody hears of them. With
  `semel.durability=fsync` they are on disk before anybody hears of them, also from the answer to a retry.
- A partition is loaded by replaying its log before its first request. Every stored partition is loaded soon after the
  start, because prepared transactions must be finished and open ones must time out.
- A record that cannot be read is skipped: the log names it with its offset, and the rest of its partition is served.
- A partition whose log is damaged is not served until a restart: its clients are told NOT_COORDINATOR.
- When an append fails, the coordinator is told, and the client gets the reply that the coordinator returns.
- A written decision is carried out, also if the client that asked for it has gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Protocol

from semel.broker.topics.internal import PARTITIONS_OF_INTERNAL_TOPICS
from semel.broker.topics.partition import Partition
from semel.errors import ErrorCode, RecordsRefused, Refused
from semel.log.reader import READ_TO_END
from semel.machines.contract import Coordinator, Decision, Effect, StateRecord
from semel.machines.values import ProducerIdentity
from semel.records.batch import Batch, read_records, split
from semel.records.building import build, build_pairs
from semel.records.compression import NONE
from semel.records.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TRANSACTIONAL
from semel.records.markers import read_marker

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)

#: How much of a log one read takes while a partition is loaded.
LOAD_READ_BYTES = 1024 * 1024
#: After so long the clock is looked at again, whatever is due.
LONGEST_SLEEP_MS = 5_000
#: What reading a record raises if it is not one, besides `Refused`.
_UNREADABLE = (StructError, ValueError, LookupError, TypeError, OverflowError)
#: The producer id and epoch of records that belong to no transaction.
NO_PRODUCER = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class Performer(Protocol):
    """Performs one type of effect."""

    def perform(self, effect: Any, /) -> None:
        """Do what the coordinator asked for."""

    def is_awaited(self, effect: Any, /) -> bool:
        """Whether somebody waits for the effect. Then it is performed before the reply is sent."""


def partition_count(broker: BrokerServer, topic_name: str) -> int:
    """How many partitions an internal topic has; the setting counts only until the topic is created."""
    topic = broker.topics.topics.get(topic_name)
    count: int = broker.settings[PARTITIONS_OF_INTERNAL_TOPICS[topic_name]]
    return count if topic is None else len(topic.partitions)


class CoordinatorHost:
    """One coordinator on one internal topic."""

    def __init__(
        self,
        broker: BrokerServer,
        topic_name: str,
        coordinator: Coordinator,
        performers: Mapping[type[Effect], Performer],
        *,
        codec: int = NONE,
        replay_marker: Callable[[int, int, bool], None] | None = None,
    ) -> None:
        """`replay_marker` gets partition, producer id and whether it committed, for each control batch in the log."""
        self.broker = broker
        self.topic_name = topic_name
        self.coordinator = coordinator
        #: Who performs an effect, by its type.
        self.performers = performers
        #: How the topic's batches are compressed.
        self._codec = codec
        self._replay_marker = replay_marker
        #: Called after records were replayed, while somebody waits for what they change.
        self.after_replay: Callable[[], None] | None = None
        #: The partitions that are served.
        self.loaded: dict[int, Partition] = {}
        #: The coordinator epoch of each. In a cluster it is the leader epoch of the partition.
        self.epochs: dict[int, int] = {}
        #: How often each partition was loaded or forgotten: as long as this is the same, one memory of it was served.
        self._terms: dict[int, int] = {}
        self._unreadable: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0

    # Loading

    def ready(self, partition: int) -> bool:
        """Load a partition of the internal topic unless it is loaded. Returns whether it can be served."""
        if partition in self.loaded:
            return True
        if self.broker.cluster is not None and not self.broker.cluster.coordinators.may_load(
            self.topic_name, partition
        ):
            return False
        if partition not in self._unreadable:
            self._load(partition)
        return partition in self.loaded

    def ready_for(self, key: str) -> bool:
        """Load the partition of this group or transactional id. Returns whether it can be served."""
        return self.ready(self.coordinator.partition_for(key))

    def load_all(self) -> Generator[None, None, None]:
        """Load all partitions, one per step."""
        topic = self.broker.topics.topics.get(self.topic_name)
        if topic is not None:
            for partition in topic.partitions:
                self.ready(partition.index)
                yield

    async def load_stored(self) -> None:
        """Load the partitions that the last run left, one at a time: clients are served in between."""
        topic = self.broker.topics.topics.get(self.topic_name)
        for partition in topic.partitions if topic is not None else ():
            if partition.has_files:
                self.ready(partition.index)
                await asyncio.sleep(0)

    def _load(self, index: int) -> None:
        partition = self.broker.internal_topics.get(self.topic_name).partition(index)
        cluster = self.broker.cluster
        epoch = self.broker.leader_epoch if cluster is None else cluster.coordinators.epoch_of(partition)
        self.coordinator.load(index, epoch)
        # In a cluster a leader has a log. One whose files are gone must not be taken for one that never had any.
        if cluster is not None or partition.open_log is not None or partition.has_files:
            try:
                self._replay_log(partition)
            except (Refused, OSError, *_UNREADABLE) as error:
                logger.error("%s-%d is damaged and cannot be loaded: %s", self.topic_name, index, error)
                self._unreadable.add(index)
                for decision in self.coordinator.unload(index):
                    self.settle(decision)
                return
        self.loaded[index], self.epochs[index] = partition, epoch
        self._terms[index] = self._terms.get(index, 0) + 1
        for decision in self.coordinator.loaded(index, self.broker.now_ms()):
            self.settle(decision)
        self.reschedule()

    def announce(self, index: int, epoch: int) -> None:
        """This broker will serve a partition. Until it is loaded, clients are told COORDINATOR_LOAD_IN_PROGRESS."""
        self.coordinator.load(index, epoch)

    def unload(self, index: int) -> None:
        """Forget a partition that another broker leads now. Whoever waits is told NOT_COORDINATOR (C2)."""
        self.loaded.pop(index, None)
        self.epochs.pop(index, None)
        self._terms[index] = self._terms.get(index, 0) + 1
        self._unreadable.discard(index)
        for decision in self.coordinator.unload(index):
            self.settle(decision)
        if self.after_replay is not None:
            self.after_replay()

    def _replay_log(self, partition: Partition) -> None:
        log = partition.log
        offset = log.log_start_offset
        while offset < log.end_offset:
            # Also what is not committed yet: in a cluster the markers of others may come before it is loaded,
            # and nobody would tell of them again.
            read = log.reader.read(offset, LOAD_READ_BYTES, READ_TO_END)
            if not len(read.data):
                # Compaction may leave nothing between here and the end of the log.
                break
            for batch in split(read.data):
                self._replay_batch(partition.index, batch)
                offset = batch.next_offset

    def _replay_batch(self, index: int, batch: Batch) -> None:
        """Replay a stored batch. What cannot be read is logged and skipped."""
        try:
            if batch.is_control:
                if self._replay_marker is not None:
                    self._replay_marker(index, batch.producer_id, read_marker(batch).commit)
                return
            records = read_records(batch)
        except (Refused, *_UNREADABLE) as error:
            self._log_skipped(index, f"the batch at offset {batch.base_offset}", error)
            return
        producer = ProducerIdentity(batch.producer_id, batch.producer_epoch) if batch.is_transactional else None
        for record in records:
            if record.key is None:
                continue
            try:
                self.coordinator.replay(StateRecord(index, bytes(record.key), _bytes(record.value), producer))
            except (Refused, *_UNREADABLE) as error:
                self._log_skipped(index, f"the record at offset {record.offset}", error)

    def _log_skipped(self, index: int, what: str, error: Exception) -> None:
        logger.error(
            "%s-%d: %s cannot be read (%s). It is skipped, and the rest is served. `semel log dump --records` shows "
            "it. If it was meant for a group, commit the group's offsets again; if for a transactional id, start its "
            "producer again: the next record of the same key replaces it.",
            self.topic_name,
            index,
            what,
            error,
        )

    # What clients write into the internal topic

    def readable(self, index: int, batch: Batch) -> list[StateRecord]:
        """The records of a client's batch; `Refused` if the coordinator could not read one of them here."""
        if batch.is_transactional:
            raise Refused(ErrorCode.INVALID_RECORD, f"no client may write to {self.topic_name} in a transaction")
        records = []
        for place, record in enumerate(read_records(batch)):
            stored = StateRecord(index, bytes(record.key or b""), _bytes(record.value))
            try:
                key = self.coordinator.key_of(stored)
            except (Refused, *_UNREADABLE) as error:
                why = f"the coordinator of {self.topic_name} could not read record {place}: {error}"
                raise RecordsRefused(ErrorCode.INVALID_RECORD, why, ((place, why),)) from None
            if self.coordinator.partition_for(key) != index:
                why = f"record {place} is about {key!r}, which does not live in partition {index}"
                raise RecordsRefused(ErrorCode.INVALID_RECORD, why, ((place, why),))
            records.append(stored)
        return records

    def take_in(self, index: int, records: Iterable[StateRecord]) -> None:
        """Replay what a client wrote, so that the coordinator knows now what it would know after a restart."""
        if self.ready(index):
            self._replay(records)
            self.reschedule()

    # Decisions

    def answer(self, decision: Decision[Any], *keys: str) -> Any:
        """Write a decision and carry it out. Returns the reply, or a coroutine that gives it.

        `broker.durability` decides the order of effects and reply. `keys` are the groups or transactional ids that the
        reply is about: what was written about them earlier may still be on its way to the disk.
        """
        reply, written = self._write(decision)
        return self.broker.durability.answer(self, decision, reply, keys) if written else reply

    def settle(self, decision: Decision[Any]) -> Any:
        """Write a decision and carry it out. Returns the reply at once; only the effects wait for the disk."""
        reply, written = self._write(decision)
        if written:
            self.broker.durability.settle(self, decision)
        return reply

    def begin_reply(self, key: str, terms: dict[int, int]) -> None:
        """Before a reply that takes several turns of the loop tells of this key: load its partition, and remember for
        `once_on_disk` which memory of it is read."""
        index = self.coordinator.partition_for(key)
        self.ready(index)
        terms.setdefault(index, self._terms.get(index, 0))

    def once_on_disk(self, reply: Any, terms: Mapping[int, int]) -> Any:
        """The reply, or a coroutine that gives it once everything written to these partitions so far is durable.

        A reply that was made in several turns of the loop may tell of records that were never committed, if another
        broker coordinates since. Then it is refused (C1).
        """
        if any(self._terms.get(index, 0) != term for index, term in terms.items()):
            return self.coordinator.refused_reply(reply, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.broker.durability.reply_once_durable(self, reply, terms)

    async def on_disk(self, *keys: str) -> None:
        """Return once everything written about these keys so far is durable."""
        await self.broker.durability.wait(self, self.partitions_of(keys))

    def partitions_of(self, keys: Iterable[str]) -> set[int]:
        """The partitions of the internal topic that these groups or transactional ids live in."""
        return {self.coordinator.partition_for(key) for key in keys}

    def unflushed(self, indexes: Iterable[int]) -> list[Partition]:
        """Those of these partitions that hold something the disk does not have yet (with fsync)."""
        topic = self.broker.topics.topics.get(self.topic_name)
        if topic is None:
            return []
        found = []
        for index in indexes:
            partition = topic.partitions[index]
            # With fsync the high watermark follows the disk.
            if partition.open_log is not None and partition.open_log.high_watermark < partition.open_log.end_offset:
                found.append(partition)
        return found

    def not_on_disk(self) -> Refused:
        """What to answer when an fsync of the internal topic failed."""
        return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic_name} could not be written to disk")

    def _write(self, decision: Decision[Any]) -> tuple[Any, bool]:
        """Append and replay the records. Returns the reply, and whether all of them were written."""
        records = decision.records
        reply, written = decision.reply, True
        if not records:
            pass
        elif len(records) == 1 or all(record.partition == records[0].partition for record in records):
            written, reply = self._write_to_one(decision, records, reply)
        else:
            by_partition: dict[int, list[StateRecord]] = {}
            for record in records:
                by_partition.setdefault(record.partition, []).append(record)
            for some in by_partition.values():
                all_written, reply = self._write_to_one(decision, tuple(some), reply)
                written = written and all_written
        self.reschedule()
        return reply, written

    def _write_to_one(self, decision: Decision[Any], records: tuple[StateRecord, ...], reply: Any) -> tuple[bool, Any]:
        """Append and replay those records of a decision that go to one partition."""
        index = records[0].partition
        try:
            self._append(self.loaded[index], records)
        except (Refused, OSError) as error:
            if self.broker.topics.gone is None:  # else it is logged already
                logger.warning("append to %s-%d failed: %s", self.topic_name, index, error)
            code = error.code if isinstance(error, Refused) else ErrorCode.KAFKA_STORAGE_ERROR
            return False, self.coordinator.append_failed(Decision(decision.reply, records, decision.effects), code)
        self._replay(records)
        return True, reply

    def _replay(self, records: Iterable[StateRecord]) -> None:
        for record in records:
            self.coordinator.replay(record)
        if self.after_replay is not None:
            self.after_replay()

    def _append(self, partition: Partition, records: Sequence[StateRecord]) -> None:
        """Append the records as one batch. Tombstones that are too many for one batch are split."""
        now_ms = self.broker.now_ms()
        pairs = [(record.key, record.value) for record in records]
        producer = records[0].producer
        producer_id, producer_epoch = producer or NO_PRODUCER
        data: bytes | bytearray
        if self._codec:
            data = build(
                pairs,
                timestamp_ms=now_ms,
                codec=self._codec,
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
            partition.append_internal(data, now_ms)
        except Refused as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE or not _can_be_split(records):
                raise
            half = len(records) // 2
            self._append(partition, records[:half])
            self._append(partition, records[half:])

    # Time

    def reschedule(self) -> None:
        """Set the timer for the coordinator's next tick."""
        at_ms = self.coordinator.next_wake_ms()
        if at_ms is None or (self._timer is not None and self._timer_at_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        # A clock that was set back, and right again meanwhile, must not keep us asleep.
        delay_ms = min(max(0, at_ms - self.broker.now_ms()), LONGEST_SLEEP_MS)
        self._timer_at_ms = at_ms
        self._timer = self.broker.loop.call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.broker.fatal_error is not None:
            return
        for decision in self.coordinator.tick(self.broker.now_ms()):
            self.settle(decision)
        self.reschedule()

    def stop(self) -> None:
        """No more ticks."""
        if self._timer is not None:
            self._timer.cancel()


def _can_be_split(records: Sequence[StateRecord]) -> bool:
    """Whether these records need not be in one batch: each tombstone stands for itself."""
    return len(records) > 1 and all(record.value is None for record in records)


def _bytes(value: bytes | memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)
