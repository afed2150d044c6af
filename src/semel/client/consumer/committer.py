"""Commits a consumer's offsets: on request, at intervals, and before partitions are given up.

Guarantees: an automatic commit covers only records that the user is done with; a commit names the member that read the
records, so that a group which has moved on refuses it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from semel.client.cluster.cluster import Cluster
from semel.client.consumer.iteration import Iteration
from semel.client.consumer.subscription import Subscription
from semel.client.offset_arguments import Offsets, PartitionLike, as_offsets, as_partitions
from semel.client.offset_requests import commit_offsets, fetch_committed
from semel.config import Values
from semel.errors import CommitFailed, ErrorCode, KafkaError, Misuse
from semel.machines.reading.fetch_positions import FetchPositions
from semel.machines.transactions.producer import OffsetAndMetadata
from semel.machines.values import TopicPartition

_REBALANCING = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH)

_log = logging.getLogger(__name__)


class OffsetCommitter:
    """The part of a consumer that commits: its public methods are methods of the consumer."""

    def __init__(
        self,
        cluster: Cluster,
        config: Values,
        positions: FetchPositions,
        iteration: Iteration,
        subscription: Subscription,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._positions = positions
        self._iteration = iteration
        self._subscription = subscription
        self._loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[None]] = set()
        self._commits_automatically = bool(config["enable.auto.commit"]) and config["group.id"] is not None
        if self._commits_automatically:
            self._iteration.next_commit_at = self._next_commit_at()

    def _next_commit_at(self) -> float:
        return float(self._loop.time() + self._config["auto.commit.interval.ms"] / 1000)

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit these offsets of the group; without arguments, those after the records that were handed out.

        Handed out are all records that `poll` has returned, and those of an iteration up to the current one. Raises
        `CommitFailed` if the group has moved on; it may have given this member's partitions away.
        """
        self._check_group("commit")
        await self._commit(self._offsets_to_commit(offsets))

    async def _commit(self, given: dict[TopicPartition, OffsetAndMetadata]) -> None:
        committed_as = self._subscription.group_metadata()
        try:
            await commit_offsets(self._cluster, committed_as, given, timeout_ms=self._config["default.api.timeout.ms"])
        except CommitFailed as error:
            if (member := self._subscription.member) is not None:
                member.on_commit_refused(error.code, committed_as)
            if error.code in _REBALANCING and given.keys() <= self._positions.partitions.keys():
                why = f"{error.why}. The group is rebalancing: poll(), then commit what is still assigned"
                raise CommitFailed(error.code, why) from error
            raise
        except Misuse as error:
            member = self._subscription.member
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND or member is None:
                raise
            # The brokers have lost the group, and for a member that is as if the group had removed it.
            member.on_commit_refused(ErrorCode.UNKNOWN_MEMBER_ID, committed_as)
            raise CommitFailed(error.code, error.why) from error

    def commit_soon(
        self,
        offsets: Offsets | None = None,
        on_done: Callable[[KafkaError | None], object] | None = None,
    ) -> None:
        """As `commit`, without waiting. `on_done` gets the error, or None; without `on_done` an error is logged."""
        self._check_group("commit_soon")
        task = self._loop.create_task(self._commit_and_tell(self._offsets_to_commit(offsets), on_done))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _commit_and_tell(
        self, given: dict[TopicPartition, OffsetAndMetadata], on_done: Callable[[KafkaError | None], object] | None
    ) -> None:
        failed: KafkaError | None = None
        try:
            await self._commit(given)
        except KafkaError as error:
            failed = error
        if on_done is not None:
            try:
                on_done(failed)
            except Exception:
                _log.exception("the callback of a commit failed")
        elif failed is not None:
            _log.warning("offsets of group '%s' were not committed: %s", self._config["group.id"], failed)

    async def committed(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets; partitions without one are left out. Waits for open transactions."""
        self._check_group("committed")
        return await fetch_committed(
            self._cluster,
            self._config["group.id"],
            as_partitions(partitions),
            timeout_ms=self._config["default.api.timeout.ms"],
        )

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What `commit` would commit: for each partition, the offset after the records that were handed out."""
        self._iteration.take_handed()
        return {
            partition: OffsetAndMetadata(entry.position, entry.leader_epoch)
            for partition, entry in self._positions.positions().items()
        }

    def _check_group(self, method: str) -> None:
        if self._config["group.id"] is None:
            raise Misuse(ErrorCode.INVALID_GROUP_ID, f"{method}() needs the setting group.id")

    def _offsets_to_commit(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the user commits. By committing, the user says that these records are done."""
        if offsets is not None:
            given = as_offsets(offsets)
            self._iteration.take_handed()
            for partition, committed in given.items():
                self._positions.on_commit(partition, committed.offset)
            return given
        given = self.consumed()
        self._positions.came_back()
        return given

    def _offsets_done(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """As `consumed`, without the records that were handed out last, from which the user has not come back."""
        self._iteration.take_handed()
        return {p: OffsetAndMetadata(*entry.done) for p, entry in self._positions.positions().items()}

    def commit_if_due(self) -> None:
        """Start an automatic commit, if auto.commit.interval.ms has passed."""
        due = self._iteration.next_commit_at
        if due is None or self._loop.time() < due:
            return
        self._iteration.next_commit_at = self._next_commit_at()
        if self._positions.positions() and not self._running:
            self.commit_soon(self._offsets_done())

    async def commit_before_revoke(self) -> None:
        """Partitions are about to be given up: finish running commits, and commit if enable.auto.commit is set."""
        await asyncio.gather(*self._running, return_exceptions=True)
        deadline = self._loop.time() + self._config["default.api.timeout.ms"] / 1000
        while self._commits_automatically:
            epoch = self._subscription.group_metadata().generation_id
            try:
                await self._commit(self._offsets_done())
            except KafkaError as error:
                # The partitions are this member's until it gives them up, whatever its epoch is by now (KIP-848).
                if error.code is not ErrorCode.STALE_MEMBER_EPOCH or not await self._wait_for_epoch(epoch, deadline):
                    self._tell_of_lost_commit(str(error))
                    return  # the group has moved on: the next reader starts from the last commit that was accepted
            except asyncio.CancelledError:
                self._tell_of_lost_commit("no answer came within the time that close() had.")
                raise
            else:
                return

    def _tell_of_lost_commit(self, why: str) -> None:
        _log.warning(
            "group '%s': partitions are given up and what was read of them since the last commit is read again: %s",
            self._config["group.id"],
            why,
        )

    async def _wait_for_epoch(self, epoch: int, deadline: float) -> bool:
        """Wait until a heartbeat has brought another epoch than this one. Returns False if none comes in time."""
        while (member := self._subscription.member) is not None and member.in_touch and self._loop.time() < deadline:
            if member.metadata.generation_id != epoch:
                return True
            await asyncio.sleep(self._cluster.backoff(1))
        return False

    async def close(self) -> None:
        """Cancel commits that still run."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
