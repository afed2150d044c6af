"""Where a consumer reads: positions, seeks and pauses, and the offsets that partition leaders know."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from semel.client.argument_lists import as_numbers_by_partition
from semel.client.arguments import as_topic
from semel.client.cluster.cluster import Cluster
from semel.client.consumer.fetcher import Fetcher
from semel.client.consumer.iteration import Iteration
from semel.client.consumer.lifetime import Lifetime
from semel.client.consumer.position_finder import PositionFinder
from semel.client.offset_arguments import PartitionLike, as_partition, as_partitions, as_position
from semel.client.offset_requests import READ_COMMITTED, OffsetAndTimestamp, list_offsets
from semel.config import Values
from semel.errors import ErrorCode, Misuse, RequestTimedOut
from semel.machines.reading.fetch_positions import EARLIEST, LATEST, FetchPositions, PositionState
from semel.machines.transactions.producer import OffsetAndMetadata
from semel.machines.values import TopicPartition


class ConsumerPositions:
    """The part of a consumer that users move: its methods are methods of the consumer."""

    def __init__(
        self,
        cluster: Cluster,
        config: Values,
        positions: FetchPositions,
        fetcher: Fetcher,
        iteration: Iteration,
        lifetime: Lifetime,
        isolation_level: int,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._positions = positions
        self._fetcher = fetcher
        self._iteration = iteration
        self._lifetime = lifetime
        self._isolation_level = isolation_level
        self.finder = PositionFinder(cluster, config, positions, fetcher, isolation_level)

    async def position(self, partition: PartitionLike) -> int:
        """The offset of the next record to be read."""
        wanted = as_partition(partition)
        self._iteration.take_handed()
        loop = asyncio.get_running_loop()
        timeout_ms = self._config["default.api.timeout.ms"]
        deadline = loop.time() + timeout_ms / 1000
        while (entry := self._positions[wanted]).state is not PositionState.FETCHING:
            if loop.time() >= deadline:
                why = f"the position of {wanted} was not found within default.api.timeout.ms={timeout_ms}"
                raise RequestTimedOut(ErrorCode.REQUEST_TIMED_OUT, why)
            await self.finder.find()
        return entry.position

    def seek(self, partition: PartitionLike, offset: int | OffsetAndMetadata) -> None:
        """Continue reading at this offset."""
        wanted, given = as_partition(partition), as_position(offset)
        self._iteration.end()
        self._positions.seek(wanted, given.offset, given.leader_epoch)

    def seek_to_beginning(self, partitions: Iterable[PartitionLike] | None = None) -> None:
        """Read from the first record that exists; without arguments, in all assigned partitions."""
        self._seek_by_time(partitions, EARLIEST)

    def seek_to_end(self, partitions: Iterable[PartitionLike] | None = None) -> None:
        """Read only new records; without arguments, in all assigned partitions."""
        self._seek_by_time(partitions, LATEST)

    def _seek_by_time(self, partitions: Iterable[PartitionLike] | None, timestamp: int) -> None:
        self._iteration.end()
        for partition in self._check_assigned(partitions):
            self._positions.seek_by_time(partition, timestamp)

    def rewind(self) -> None:
        """Go back to the group's committed offsets: records read since then are read again."""
        if self._config["group.id"] is None:
            raise Misuse(ErrorCode.INVALID_GROUP_ID, "rewind() needs the setting group.id")
        self._iteration.end()
        self._positions.rewind()

    def pause(self, partitions: Iterable[PartitionLike]) -> None:
        """Return no records of these partitions until `resume`. They stay assigned."""
        self._iteration.end()
        for partition in self._check_assigned(partitions):
            self._positions.pause(partition)

    def resume(self, partitions: Iterable[PartitionLike]) -> None:
        """Return records of these partitions again."""
        self._iteration.end()
        for partition in self._check_assigned(partitions):
            self._positions.resume(partition)
        self._fetcher.arrived.set()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return self._positions.paused

    def lag(self, partition: PartitionLike) -> int | None:
        """Offsets between the position and the end of what can be read, as of the last fetch; None before the first."""
        self._iteration.take_handed()
        entry = self._positions[as_partition(partition)]
        end = entry.last_stable_offset if self._isolation_level == READ_COMMITTED else entry.high_watermark
        return None if end < 0 or entry.position < 0 else max(0, end - entry.position)

    async def beginning_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return await self._offsets_at(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The end of each partition: under read_committed, the last stable offset."""
        return await self._offsets_at(partitions, LATEST)

    async def _offsets_at(self, partitions: Iterable[PartitionLike], timestamp: int) -> dict[TopicPartition, int]:
        self._lifetime.check_open()
        found = await self._list_offsets(dict.fromkeys(as_partitions(partitions), timestamp))
        return {partition: answer.offset for partition, answer in found.items()}

    async def offsets_for_times(
        self, timestamps: Mapping[PartitionLike, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition at or after a time in milliseconds; None where there is none."""
        self._lifetime.check_open()
        found = await self._list_offsets(as_numbers_by_partition(timestamps, "timestamps", "a timestamp", 0))
        return {partition: (answer if answer.offset >= 0 else None) for partition, answer in found.items()}

    async def _list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        return await list_offsets(
            self._cluster,
            wanted,
            isolation_level=self._isolation_level,
            timeout_ms=self._config["default.api.timeout.ms"],
        )

    def _check_assigned(self, partitions: Iterable[PartitionLike] | None) -> list[TopicPartition]:
        """These partitions, or all that are assigned. Raises before anything is changed if one is not assigned."""
        wanted = list(self._positions.partitions) if partitions is None else as_partitions(partitions)
        for partition in wanted:
            self._positions[partition]  # raises
        return wanted

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic."""
        self._lifetime.check_open()
        info = await self._cluster.topic(as_topic(topic), timeout_ms=self._config["default.api.timeout.ms"])
        return [TopicPartition(topic, row.partition) for row in info.partitions]
