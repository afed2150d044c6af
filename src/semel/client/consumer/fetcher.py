"""Fetches records from partition leaders and holds them until they are taken.

Guarantees: records of a partition are handed out in offset order, each once for a position; records that the isolation
level hides are never handed out; a partition is fetched while at most one of its responses waits, so that fetching and
processing overlap while memory stays bounded; an error of one partition does not hold up the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from semel.client.cluster.cluster import Cluster
from semel.client.cluster.metadata import NO_TOPIC_ID
from semel.config import Values
from semel.errors import ErrorCode, KafkaError, Refused, Retriable, error_for
from semel.machines.reading.fetch_positions import FetchPositions, PartitionPosition
from semel.machines.reading.read_committed import all_batches, committed_batches
from semel.machines.values import TopicPartition
from semel.records.batch import Batch, Record, check, read_records, split
from semel.wire.apis import APIS, ApiKey
from semel.wire.messages.fetch import FetchRequest

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_ANSWERS_HELD = 2
#: How long a leader may be missing before a warning: it is normal that leaders move.
_PASSING_S = 2.0
_LAST_VERSION_BY_NAME = 12
#: The newest version with changes for consumers; version 18 only has changes for followers.
_NEWEST_VERSION = min(17, APIS[ApiKey.FETCH].max_version)


class ConsumerRecord(NamedTuple):
    """One record and its place. `timestamp_type` is 0 for the producer's clock, 1 for the broker's."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_type: int
    leader_epoch: int


class Unreadable(KafkaError):
    """A batch from the broker cannot be read: it is damaged, or in an unknown format."""


@dataclass(slots=True, eq=False)
class Fetched:
    """One partition's part of one fetch response."""

    partition: TopicPartition
    generation: int
    batches: deque[Batch]
    #: The position after all of this is taken, hidden batches included.
    next_offset: int
    leader_epoch: int
    records: deque[Record] = field(default_factory=deque)
    current: Batch | None = None


@dataclass(slots=True, eq=False)
class Ahead:
    """Records for an iteration. A record is taken only when it was handed out."""

    fetched: Fetched
    records: list[ConsumerRecord]
    #: How many of them were handed out. Written by the user's thread, which may not be the loop's.
    handed: int = 0
    #: How many of these were taken already.
    taken: int = 0


class Fetcher:
    """The fetches of one consumer. Everything happens on one loop."""

    def __init__(self, cluster: Cluster, positions: FetchPositions, config: Values) -> None:
        self._cluster = cluster
        self._positions = positions
        self._config = config
        self._read_committed = config["isolation.level"] == "read_committed"
        self._held: list[Fetched] = []
        self._asked: dict[int, asyncio.Task[None]] = {}
        self._not_before: dict[TopicPartition, float] = {}
        self._tries: dict[TopicPartition, int] = {}
        self._errors: deque[BaseException] = deque()
        #: The replica that a leader prefers for reading, and until when.
        self._nearer: dict[TopicPartition, tuple[int, float]] = {}
        #: Topics that were deleted while they were read, and another one has the name since.
        self._former_topics: set[UUID] = set()
        #: Set when there is something new for `poll`.
        self.arrived = asyncio.Event()

    # --- asking ---------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Send a fetch to every leader that has none in flight and has partitions to fetch."""
        now = asyncio.get_running_loop().time()
        held: dict[TopicPartition, list[Fetched]] = {}
        for fetched in self._held:
            held.setdefault(fetched.partition, []).append(fetched)
        by_node: dict[int, list[tuple[TopicPartition, int, int]]] = {}
        doubtful: set[str] = set()
        for partition, entry in self._positions.fetchable():
            if self._not_before.get(partition, 0.0) > now:
                continue
            waiting = [f for f in held.get(partition, ()) if f.generation == entry.generation]
            if len(waiting) >= _ANSWERS_HELD:
                continue
            node_id = self._replica_for(partition, now)
            if node_id is None or partition.topic not in self._cluster.metadata.fetched_at:
                doubtful.add(partition.topic)
                continue
            if not waiting and not self._is_in_its_topic(partition, entry):
                continue
            if node_id not in self._asked:
                offset = waiting[-1].next_offset if waiting else entry.position
                by_node.setdefault(node_id, []).append((partition, entry.generation, offset))
        for node_id, wanted in by_node.items():
            # While throttled, nothing is sent: positions may change until the wait is over.
            left_s = self._cluster.throttled_s(node_id, "fetch")
            self._start(node_id, asyncio.sleep(left_s) if left_s else self._fetch(node_id, wanted))
        if doubtful and -1 not in self._asked:
            self._start(-1, self._find_leaders(doubtful))

    def _is_in_its_topic(self, partition: TopicPartition, entry: PartitionPosition) -> bool:
        """Whether the position is one in the topic that has this name now.

        If the topic was deleted and created again, the position is given up. Otherwise the first records of the new
        topic, as many as were read of the old one, would be skipped without a word.
        """
        topic_id = self._cluster.metadata.topics[partition.topic].topic_id
        former = entry.topic_id
        if former is None:
            entry.topic_id = former = topic_id
        if topic_id == former or NO_TOPIC_ID in (topic_id, former):
            return True
        if topic_id in self._former_topics:  # this broker has not heard of the new one yet
            self._doubt((partition,))
            return False
        try:
            self._positions.on_another_topic(partition)
        except KafkaError as error:
            self._errors.append(error)
            self._later(partition)
        else:
            self._former_topics.add(former)
            logger.warning("topic %s was deleted and created again: partition %d is read from its start", *partition)
        self.arrived.set()
        return False

    def _replica_for(self, partition: TopicPartition, now: float) -> int | None:
        """The node to fetch from: the leader, or the replica it prefers (KIP-392). None if it is not known."""
        node_id, until = self._nearer.get(partition, (-1, 0.0))
        if until > now and node_id in self._cluster.metadata.nodes:
            return node_id
        return self._cluster.metadata.leader(partition.topic, partition.partition)

    def _start(self, node_id: int, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._asked[node_id] = task

        def done(ended: asyncio.Task[None]) -> None:
            if self._asked.get(node_id) is task:
                del self._asked[node_id]
            failure = None if ended.cancelled() else ended.exception()
            if failure is not None:
                self._errors.append(failure)  # unexpected: `poll` must raise it
            self.arrived.set()

        task.add_done_callback(done)

    async def _find_leaders(self, topics: set[str]) -> None:
        try:
            await self._cluster.refresh_metadata(topics)
        except Retriable:
            await asyncio.sleep(self._cluster.backoff(1))
        except KafkaError as error:
            self._errors.append(error)
        else:
            if any(topic not in self._cluster.metadata.fetched_at for topic in topics):
                await asyncio.sleep(self._cluster.backoff(1))

    async def _fetch(self, node_id: int, wanted: list[tuple[TopicPartition, int, int]]) -> None:
        config = self._config
        request = FetchRequest(
            max_wait_ms=config["fetch.max.wait.ms"],
            min_bytes=config["fetch.min.bytes"],
            max_bytes=config["fetch.max.bytes"],
            isolation_level=int(self._read_committed),
            topics=self._topics(wanted),
            rack_id=config["client.rack"],
        )
        by_id = all(topic.topic_id != NO_TOPIC_ID for topic in request.topics)
        try:
            response = await self._cluster.request(
                node_id,
                request,
                newest=_NEWEST_VERSION if by_id else _LAST_VERSION_BY_NAME,
                timeout_ms=config["request.timeout.ms"] + config["fetch.max.wait.ms"],
                lane="fetch",
            )
        except Retriable:
            self._doubt((partition for partition, _, _ in wanted))
            return
        except KafkaError as error:
            self._errors.append(error)
            return
        if response.error_code:
            self._doubt((partition for partition, _, _ in wanted))
            return
        asked = {partition: (generation, offset) for partition, generation, offset in wanted}
        names = self._cluster.metadata.topic_names
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id)
            if name is None:
                continue
            for row in topic.partitions:
                partition = TopicPartition(name, row.partition_index)
                if partition in asked:
                    self._take_in(partition, *asked[partition], row)

    def _topics(self, wanted: list[tuple[TopicPartition, int, int]]) -> list[Any]:
        topics: dict[str, list[Any]] = {}
        for partition, _, offset in wanted:
            info = self._cluster.metadata.partition(partition.topic, partition.partition)
            topics.setdefault(partition.topic, []).append(
                FetchRequest.FetchPartition(
                    partition=partition.partition,
                    current_leader_epoch=-1 if info is None else info.leader_epoch,
                    fetch_offset=offset,
                    partition_max_bytes=self._config["max.partition.fetch.bytes"],
                )
            )
        known = self._cluster.metadata.topics
        return [
            FetchRequest.FetchTopic(
                topic=name, topic_id=known[name].topic_id if name in known else NO_TOPIC_ID, partitions=rows
            )
            for name, rows in topics.items()
        ]

    # --- taking in ------------------------------------------------------------------------------------------------

    def _take_in(self, partition: TopicPartition, generation: int, offset: int, row: Any) -> None:
        code = ErrorCode.of(row.error_code)
        if not self._positions.is_current(partition, generation):
            return
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self._nearer.pop(partition, None) is not None:
            return  # a follower may be behind: ask the leader
        if code is ErrorCode.NONE and row.preferred_read_replica >= 0:
            until = asyncio.get_running_loop().time() + self._config["metadata.max.age.ms"] / 1000
            self._nearer[partition] = (row.preferred_read_replica, until)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self._positions[partition].position != offset:
            self._later(partition)  # fetched ahead of the reader, who is not there yet
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
            try:
                self._positions.on_out_of_range(partition, generation)
            except KafkaError as error:
                self._errors.append(error)
                self._later(partition)
            else:
                # Records may be skipped by this, or read twice: that must not happen without a word.
                policy = self._positions.reset_policy
                end = "beginning" if policy == "earliest" else "end"
                logger.warning(
                    "%s: offset %d is not in the log (any more): auto.offset.reset=%s, so reading goes on at its %s",
                    partition,
                    offset,
                    policy,
                    end,
                )
        elif code.retriable:
            what = f"{partition} cannot be read"
            self._cluster.wait_warnings.begin(partition, what, code.meaning, after_s=_PASSING_S)
            self._doubt((partition,))
        elif code is not ErrorCode.NONE:
            self._errors.append(error_for(code, f"fetch of {partition} at {offset}: {code.meaning}"))
            self._later(partition)
        else:
            if self._cluster.wait_warnings:
                self._cluster.wait_warnings.end(partition)
            self._tries.pop(partition, None)
            self._hold(partition, generation, offset, row, self._positions[partition])

    def _hold(
        self, partition: TopicPartition, generation: int, offset: int, row: Any, entry: PartitionPosition
    ) -> None:
        entry.high_watermark, entry.last_stable_offset = row.high_watermark, row.last_stable_offset
        entry.log_start_offset = row.log_start_offset
        if not row.records:
            return
        try:
            batches = split(row.records, partial_tail=True)
            if self._read_committed:
                aborted = [(a.producer_id, a.first_offset) for a in row.aborted_transactions or ()]
                visible = deque(b for b in committed_batches(batches, aborted) if b.last_offset >= offset)
            else:
                visible = deque(b for b in all_batches(batches) if b.last_offset >= offset)
        except Refused as refused:
            self._errors.append(error_for(refused.code, f"{partition} at {offset}: {refused.why}"))
            self._later(partition)
            return
        if batches:
            last = batches[-1]
            self._held.append(Fetched(partition, generation, visible, last.next_offset, last.leader_epoch))

    def _doubt(self, partitions: Iterable[TopicPartition]) -> None:
        """The leader of these partitions is in doubt: fetch metadata, and retry a little later."""
        for partition in partitions:
            self._nearer.pop(partition, None)
            self._cluster.forget_topic(partition.topic)
            self._later(partition)

    def _later(self, partition: TopicPartition) -> None:
        tries = self._tries[partition] = self._tries.get(partition, 0) + 1
        loop = asyncio.get_running_loop()
        pause = self._cluster.backoff(tries)
        self._not_before[partition] = loop.time() + pause
        loop.call_later(pause, self.arrived.set)

    # --- handing out ----------------------------------------------------------------------------------------------

    def raise_error(self) -> None:
        """Raise the oldest error that was not raised yet."""
        if self._errors:
            raise self._errors.popleft()

    def take(self, most: int) -> list[ConsumerRecord]:
        """Take up to `most` records, one partition after another."""
        taken: list[ConsumerRecord] = []
        try:
            while len(taken) < most and (fetched := self._next_held()) is not None:
                self._take_from(fetched, taken, most)
        except Unreadable:
            if not taken:
                raise
        return taken

    def look_ahead(self, most: int) -> list[Ahead]:
        """Up to `most` records of one partition, for an iteration. `take_handed` takes those that were handed out."""
        while (fetched := self._next_held()) is not None:
            batch = fetched.current
            if fetched.records and batch is not None:
                (topic, number), kind, epoch = fetched.partition, batch.timestamp_type, batch.leader_epoch
                records = [
                    ConsumerRecord(topic, number, offset, timestamp, key, value, headers, kind, epoch)
                    for offset, timestamp, key, value, headers in islice(fetched.records, most)
                ]
                return [Ahead(fetched, records)]
            if fetched.batches:
                self._open(fetched)
            else:
                self._done_with(fetched)
        return []

    def take_handed(self, ahead: Ahead) -> None:
        """Take the records that were handed out. The last one is being processed, all others are done."""
        fetched, count = ahead.fetched, ahead.handed - ahead.taken
        ahead.taken = ahead.handed
        if count == 0 or not self._positions.is_current(fetched.partition, fetched.generation):
            return
        for _ in range(count):
            fetched.records.popleft()
        last = ahead.records[ahead.handed - 1]
        self._positions.advance(fetched.partition, last.offset, last.leader_epoch)
        self._positions.came_back()
        self._positions.advance(fetched.partition, last.offset + 1, last.leader_epoch)
        if not fetched.records and not fetched.batches:
            self._done_with(fetched)

    def take_arrow(self, most_bytes: int) -> list[pa.RecordBatch]:
        """Take all records held, up to about `most_bytes` of batches, as Arrow columns."""
        parts: list[pa.RecordBatch] = []
        size = 0
        try:
            while size < most_bytes and (fetched := self._next_held()) is not None:
                size += self._take_columns(fetched, parts)
        except Unreadable:
            if not parts:
                raise
        return parts

    def _take_columns(self, fetched: Fetched, parts: list[pa.RecordBatch]) -> int:
        """Take one response, up to a batch that cannot be read. Returns the size in bytes."""
        from semel.records.columns import to_arrow

        partition = fetched.partition
        if fetched.current is not None:
            fetched.batches.appendleft(fetched.current)
            fetched.current = None
            fetched.records.clear()
        batches = list(fetched.batches)
        try:
            part = to_arrow(
                batches,
                topic=partition.topic,
                partition=partition.partition,
                from_offset=self._positions[partition].position,
                verify=bool(self._config["check.crcs"]),
            )
        except Refused:
            if len(batches) > 1:
                # Take the batches one by one, until the unreadable one is the first.
                head = batches[0]
                first = Fetched(partition, fetched.generation, deque([head]), head.next_offset, head.leader_epoch)
                self._held.insert(self._held.index(fetched), first)
                size = self._take_columns(first, parts)
                fetched.batches.popleft()
                return size
            self._open(fetched)  # raises with the reason
            raise
        if part.num_rows:
            parts.append(part)
        self._done_with(fetched)
        return sum(batch.size_bytes for batch in batches)

    def _next_held(self) -> Fetched | None:
        """The first response that may be used. Those of old positions are dropped; those of paused partitions wait."""
        self._held = [f for f in self._held if self._positions.is_current(f.partition, f.generation)]
        return next((f for f in self._held if not self._positions[f.partition].paused), None)

    def _take_from(self, fetched: Fetched, taken: list[ConsumerRecord], most: int) -> None:
        topic, number = fetched.partition.topic, fetched.partition.partition
        position = self._positions[fetched.partition].position
        while len(taken) < most:
            if not fetched.records:
                if not fetched.batches:
                    self._done_with(fetched)
                    return
                self._open(fetched)
                continue
            batch = fetched.current
            assert batch is not None
            kind, epoch = batch.timestamp_type, batch.leader_epoch
            records = fetched.records
            for _ in range(min(most - len(taken), len(records))):
                offset, timestamp, key, value, headers = records.popleft()
                taken.append(ConsumerRecord(topic, number, offset, timestamp, key, value, headers, kind, epoch))
            position = taken[-1].offset + 1
            self._positions.advance(fetched.partition, position, epoch)
        if not fetched.records and not fetched.batches:
            self._done_with(fetched)

    def _open(self, fetched: Fetched) -> None:
        """Read the records of the next batch. A batch that cannot be read stays first, and raises every time."""
        batch, position = fetched.batches[0], self._positions[fetched.partition].position
        try:
            if self._config["check.crcs"]:
                check(batch, stored=True)
            fetched.records.extend([record for record in read_records(batch) if record.offset >= position])
        except Refused as refused:
            why = f"{fetched.partition} at {batch.base_offset}: {refused.why or refused.code.meaning}"
            raise Unreadable(refused.code, f"{why}. To continue without it, seek to {batch.next_offset}") from refused
        fetched.current = fetched.batches.popleft()

    def _done_with(self, fetched: Fetched) -> None:
        self._held.remove(fetched)
        self._positions.advance(fetched.partition, fetched.next_offset, fetched.leader_epoch)

    async def close(self) -> None:
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
