"""Finds the positions that a consumer does not know: from the group's commits, or by auto.offset.reset.

Guarantees: partitions whose position was found are read at once; the others are asked for again, with a growing pause;
`poll` does not wait for any of it.
"""

from __future__ import annotations

import asyncio

from semel.client.cluster.cluster import Cluster
from semel.client.consumer.fetcher import Fetcher
from semel.client.offset_requests import ask_leaders, fetch_committed, list_offsets
from semel.config import Values
from semel.errors import Disconnected, Retriable
from semel.machines.reading.fetch_positions import LATEST, FetchPositions


class PositionFinder:
    """Looks for positions in the background, for one consumer."""

    def __init__(
        self, cluster: Cluster, config: Values, positions: FetchPositions, fetcher: Fetcher, isolation_level: int
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._positions = positions
        self._fetcher = fetcher
        self._isolation_level = isolation_level
        self._task: asyncio.Task[None] | None = None
        #: How often in a row a leader could not say where its partition begins or ends.
        self._failures = 0

    def start(self) -> None:
        """Look for unknown positions in the background. Raises the last search's error, if it cannot be retried."""
        if self._task is not None:
            if not self._task.done():
                return
            task, self._task = self._task, None
            self._report(task.exception())
        if self._positions.needing_committed() or self._positions.needing_reset():
            self._task = asyncio.get_running_loop().create_task(self.find())
            self._task.add_done_callback(lambda _: self._fetcher.arrived.set())

    def _report(self, error: BaseException | None) -> None:
        if error is None:
            self._cluster.wait_warnings.end("positions")
        elif not isinstance(error, Retriable):
            raise error
        elif not isinstance(error, Disconnected):  # a broker that is down is reported by its connection
            self._cluster.wait_warnings.begin("positions", "the positions to read from are not known", error.why)

    async def find(self) -> None:
        """Ask once for every position that is not known."""
        await self._find_committed()
        await self._find_by_time()

    async def _find_committed(self) -> None:
        wanted = self._positions.needing_committed()
        if not wanted:
            return
        asked_in = {partition: self._positions[partition].generation for partition in wanted}
        group_id = self._config["group.id"]
        timeout_ms = self._config["default.api.timeout.ms"]
        found = {}
        if group_id is not None:
            found = await fetch_committed(self._cluster, group_id, wanted, timeout_ms=timeout_ms)
        for partition in wanted:
            given = found.get(partition)
            offset, epoch = (None, -1) if given is None else (given.offset, given.leader_epoch)
            self._positions.on_committed(partition, offset, epoch, asked_in=asked_in[partition])

    async def _find_by_time(self) -> None:
        resets = self._positions.needing_reset()
        if not resets:
            return
        timeout_ms = self._config["default.api.timeout.ms"]
        found, missing = await ask_leaders(self._cluster, resets, self._isolation_level, timeout_ms)
        for partition, answer in found.items():
            offset, epoch = answer.offset, answer.leader_epoch
            if offset < 0:  # no record is that young: start at the end
                at_end = await list_offsets(
                    self._cluster, {partition: LATEST}, isolation_level=self._isolation_level, timeout_ms=timeout_ms
                )
                offset, epoch = at_end[partition].offset, -1
            self._positions.on_offset(partition, resets[partition], offset, epoch)
        if missing is None:
            self._failures = 0
            return
        self._fetcher.arrived.set()  # what was found can be read already
        self._failures += 1
        await asyncio.sleep(self._cluster.backoff(self._failures))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
