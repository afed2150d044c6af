"""Grouped fsync: one fsync serves everybody whose records were written before it began.

A round fsyncs all partitions that somebody waits for, on a thread. Requests that arrive while it runs wait together for
the next round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.broker.topics.partition import Partition
    from semel.log.partition_log import PartitionLog

    _Job = tuple[Partition, PartitionLog, Callable[[], int]]

logger = logging.getLogger(__name__)


class Flusher:
    """Turns many waits for durability into few fsyncs."""

    def __init__(self, threads: Callable[[int, str], Executor]) -> None:
        self._new_threads = threads
        self._threads: Executor | None = None
        #: In the order in which they were asked for.
        self._wanted: dict[Partition, None] = {}
        self._next: asyncio.Task[None] | None = None
        #: Those who wait for the next round. Each has its own future: one that gives up must not disturb the others.
        self._waiting: list[asyncio.Future[frozenset[Partition]]] = []
        self._one_at_a_time = asyncio.Lock()
        self.rounds = 0

    async def flush(self, partitions: Iterable[Partition]) -> frozenset[Partition]:
        """Wait until everything that these partitions hold now is on disk. Returns those where that failed.

        A partition that is deleted meanwhile has not failed: nothing of it is left to flush.
        """
        partitions = list(partitions)
        mine = frozenset(partitions)
        if not mine:
            return mine
        self._wanted.update(dict.fromkeys(partitions))
        loop = asyncio.get_running_loop()
        done: asyncio.Future[frozenset[Partition]] = loop.create_future()
        self._waiting.append(done)
        if self._next is None:
            self._next = loop.create_task(self._round())
        return mine & await done

    async def _round(self) -> None:
        waiting = self._waiting
        try:
            failed = await self._flush_wanted()
        except asyncio.CancelledError:
            for done in waiting:
                done.cancel()
            raise
        except Exception as error:
            for done in waiting:
                if not done.done():
                    done.set_exception(error)
        else:
            for done in waiting:
                if not done.done():
                    done.set_result(failed)

    async def _flush_wanted(self) -> frozenset[Partition]:
        async with self._one_at_a_time:
            wanted, self._wanted, self._next, self._waiting = self._wanted, {}, None, []
            self.rounds += 1
            logs = {partition: partition.open_log for partition in wanted}
            jobs = _prepare_jobs(logs)
            if self._threads is None:
                self._threads = self._new_threads(1, "semel-fsync")
            reached = await asyncio.get_running_loop().run_in_executor(self._threads, _flush_all, jobs)
        for partition, offset in reached.items():
            log = logs[partition]
            if log is not None and not log.is_replicated:
                # Of a replicated log the replicas decide what is committed.
                log.advance_high_watermark(offset)
                partition.wake_watchers()
        return frozenset(partition for partition in wanted.keys() - reached.keys() if partition.open_log is not None)

    def close(self) -> None:
        """Wait for the running round."""
        if self._threads is not None:
            self._threads.shutdown(wait=True)


def _prepare_jobs(logs: dict[Partition, PartitionLog | None]) -> list[_Job]:
    jobs = []
    for partition, log in logs.items():
        if log is not None and log.failed is None:
            try:
                jobs.append((partition, log, log.flusher.prepare()))
            except OSError as error:
                log.fail(error)
    return jobs


def _flush_all(jobs: list[_Job]) -> dict[Partition, int]:
    reached = {}
    for partition, log, flush in jobs:
        try:
            reached[partition] = flush()
        except OSError as error:
            # Nobody knows what is on disk now: the partition takes no more writes until a restart has recovered it.
            log.failed = error
            logger.exception("fsync of %s failed", partition)
    return reached
