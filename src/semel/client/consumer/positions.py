"""Where a consumer reads: positions, seeks and pauses, and the offsets that partition leaders know.

A part of `AsyncConsumer`, which sets what is declared here and finds positions that are not known.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from semel.client.argument_lists import as_numbers_by_partition
from semel.client.arguments import as_topic
from semel.client.cluster.cluster import Cluster
from semel.client.consumer.fetcher import Fetcher
from semel.client.offset_arguments import PartitionLike, as_partition, as_partitions, as_position
from semel.client.offset_requests import READ_COMMITTED, OffsetAndTimestamp, list_offsets
from semel.config import Values
from semel.errors import ErrorCode, Misuse, RequestTimedOut
from semel.machines.reading.fetch_positions import EARLIEST, LATEST, FetchPositions, PositionState
from semel.machines.transactions.producer import OffsetAndMetadata
from semel.machines.values import TopicPartition


class Places(ABC):
    """The part of a consumer that is about places in the log."""

    config: Values
    _cluster: Cluster
    _fetcher: Fetcher
    _isolation: int
    _loop: asyncio.AbstractEventLoop
    _positions: FetchPositions

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _take_handed(self) -> None: ...

    @abstractmethod
    def _end_iteration(self) -> None: ...

    @abstractmethod
    async def _find_positions(self) -> None: ...

    async def position(self, partition: PartitionLike) -> int:
        """The offset of the next record to be read."""
        wanted = as_partition(partition)
        self._take_handed()
        timeout_ms = self.config["default.api.timeout.ms"]
        deadline = self._loop.time() + timeout_ms / 1000
        while (entry := self._positions[wanted]).state is not PositionState.FETCHING:
            if self._loop.time() >= deadline:
                why = f"the position of {wanted} was not found within default.api.timeout.ms={timeout_ms}"
                raise RequestTimedOut(ErrorCode.REQUEST_TIMED_OUT, why)
            await self._find_positions()
        return entry.position

    def seek(self, partition: PartitionLike, offset: int | OffsetAndMetadata) -> None:
        """Read on from this offset."""
        wanted, given = as_partition(partition), as_position(offset)
        self._end_iteration()
        self._positions.seek(wanted, given.offset, given.leader_epoch)

    def seek_to_beginning(self, partitions: Iterable[PartitionLike] | None = None) -> None:
        """Read from the first record there is; without partitions, in all that are assigned."""
        self._seek_by_time(partitions, EARLIEST)

    def seek_to_end(self, partitions: Iterable[PartitionLike] | None = None) -> None:
        """Read only what comes from now on; without partitions, in all that are assigned."""
        self._seek_by_time(partitions, LATEST)

    def _seek_by_time(self, partitions: Iterable[PartitionLike] | None, timestamp: int) -> None:
        self._end_iteration()
        for partition in self._assigned(partitions):
            self._positions.seek_by_time(partition, timestamp)

    def rewind(self) -> None:
        """Read again from what the group has committed: what was read since then comes once more."""
        if self.config["group.id"] is None:
            raise Misuse(ErrorCode.INVALID_GROUP_ID, "rewind() needs the setting group.id")
        self._end_iteration()
        self._positions.rewind()

    def pause(self, partitions: Iterable[PartitionLike]) -> None:
        """Get no records of these partitions until `resume`; they stay assigned."""
        self._end_iteration()
        for partition in self._assigned(partitions):
            self._positions.pause(partition)

    def resume(self, partitions: Iterable[PartitionLike]) -> None:
        self._end_iteration()
        for partition in self._assigned(partitions):
            self._positions.resume(partition)
        self._fetcher.arrived.set()

    def paused(self) -> set[TopicPartition]:
        return self._positions.paused

    def lag(self, partition: PartitionLike) -> int | None:
        """Offsets between the position and what can be read now, as of the last fetch; None before the first."""
        self._take_handed()
        entry = self._positions[as_partition(partition)]
        end = entry.last_stable_offset if self._isolation == READ_COMMITTED else entry.high_watermark
        return None if end < 0 or entry.position < 0 else max(0, end - entry.position)

    async def beginning_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return await self._offsets_at(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The end of each partition: under read_committed, the last stable offset."""
        return await self._offsets_at(partitions, LATEST)

    async def offsets_for_times(
        self, timestamps: Mapping[PartitionLike, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition at or after a time in milliseconds; None where there is none."""
        self._check_open()
        wanted = as_numbers_by_partition(timestamps, "timestamps", "a timestamp", 0)
        found = await list_offsets(
            self._cluster,
            wanted,
            isolation_level=self._isolation,
            timeout_ms=self.config["default.api.timeout.ms"],
        )
        return {partition: (answer if answer.offset >= 0 else None) for partition, answer in found.items()}

    async def _offsets_at(self, partitions: Iterable[PartitionLike], timestamp: int) -> dict[TopicPartition, int]:
        self._check_open()
        found = await list_offsets(
            self._cluster,
            dict.fromkeys(as_partitions(partitions), timestamp),
            isolation_level=self._isolation,
            timeout_ms=self.config["default.api.timeout.ms"],
        )
        return {partition: answer.offset for partition, answer in found.items()}

    def _assigned(self, partitions: Iterable[PartitionLike] | None) -> list[TopicPartition]:
        """These partitions, all of which must be assigned; without any, all that are."""
        wanted = list(self._positions.partitions) if partitions is None else as_partitions(partitions)
        for partition in wanted:
            self._positions[partition]  # raises: nothing is done by halves
        return wanted

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions a topic has."""
        self._check_open()
        info = await self._cluster.topic(as_topic(topic), timeout_ms=self.config["default.api.timeout.ms"])
        return [TopicPartition(topic, row.partition) for row in info.partitions]
