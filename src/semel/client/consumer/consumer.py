"""The consumer: records of assigned or subscribed partitions, in order, hiding what was not committed.

The rules are in `machines`: `fetch_positions` knows where reading stands, `read_committed` what is shown, `membership`
which partitions are this consumer's. Unless told otherwise a consumer shows committed records only
(isolation.level=read_committed): Kafka's Java client shows everything, librdkafka and Semel do not.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from semel.client.argument_lists import (
    as_callback,
    as_subscription,
    as_timeout_s,
    as_values,
)
from semel.client.arguments import INT32_MAX, as_number
from semel.client.cluster.cluster import Cluster
from semel.client.cluster.connection import Connection
from semel.client.consumer.fetcher import Ahead, ConsumerRecord, Fetcher
from semel.client.consumer.positions import Places
from semel.client.finalizers import drop
from semel.client.group.classic_member import ClassicGroupMember
from semel.client.group.consumer_member import ConsumerGroupMember
from semel.client.group.member import Callback, GroupMember, Hooks, RebalanceListener
from semel.client.offset_arguments import Offsets, PartitionLike, as_offsets, as_partitions
from semel.client.offset_requests import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ask_leaders,
    commit_offsets,
    fetch_committed,
)
from semel.config import CONSUMER, ConfigError, Values
from semel.errors import (
    CommitFailed,
    Disconnected,
    ErrorCode,
    KafkaError,
    Misuse,
    Retriable,
    error_for,
)
from semel.machines.reading.fetch_positions import FetchPositions
from semel.machines.transactions.producer import GroupMetadata, OffsetAndMetadata
from semel.machines.values import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_REBALANCING = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH)

_log = logging.getLogger(__name__)


class AsyncConsumer(Places):
    """A consumer for asyncio. `semel.Consumer` is the same for blocking code.

    Make it on the running loop and close it, or use it as `async with AsyncConsumer(config) as consumer`.
    """

    def __init__(
        self,
        config: Values | Mapping[str, object],
        *,
        connect: Callable[[str, int], Awaitable[Connection]] | None = None,
    ) -> None:
        self.config = values = as_values(config, CONSUMER)
        if values["session.timeout.ms"] <= values["heartbeat.interval.ms"]:
            raise ConfigError("heartbeat.interval.ms must be below session.timeout.ms: a third of it is usual")
        self._cluster = Cluster(values, auto_create_topics=values["allow.auto.create.topics"], connect=connect)
        self._positions = FetchPositions(values["auto.offset.reset"])
        self._fetcher = Fetcher(self._cluster, self._positions, values)
        self._isolation = READ_COMMITTED if values["isolation.level"] == "read_committed" else READ_UNCOMMITTED
        self._member: GroupMember | None = None
        self._pattern: re.Pattern[str] | None = None
        self._topics: frozenset[str] = frozenset()
        self._listener = RebalanceListener()
        self._settling: asyncio.Task[None] | None = None
        self._locating: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._next_look = 0.0
        self._committing: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._next_auto_commit = self._loop.time() + values["auto.commit.interval.ms"] / 1000
        self._next_topic_check = self._loop.time() + values["metadata.max.age.ms"] / 1000
        #: How often in a row a leader could not say where its partition begins or ends.
        self._fruitless = 0
        self._polling = False
        self._closed = False
        #: What iteration hands out next, if it may without a poll.
        self._ahead: Ahead | None = None
        self._auto_commits = bool(values["enable.auto.commit"]) and values["group.id"] is not None
        #: The group wants this member to come to `poll`.
        self._summoned = False
        #: Set by whoever called `poll` and was interrupted before it had the answer. From any thread.
        self.undelivered = False

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close_after(30_000, in_order=kind is None)

    # --- what to read ---------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[PartitionLike]) -> None:
        """Read these partitions, without asking a group. Pairs of topic and number will do."""
        self._check_open()
        wanted = as_partitions(partitions)
        if self._member is not None:
            raise Misuse(ErrorCode.INVALID_REQUEST, "assign() after subscribe(): unsubscribe() first")
        self._end_iteration()
        self._positions.assign(wanted, with_group=self.config["group.id"] is not None)

    async def subscribe(
        self,
        topics: Iterable[str] | str | re.Pattern[str],
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Share these topics with the other members of group.id; a compiled pattern follows topics as they come.

        The callbacks get a list of partitions and may be coroutines; `on_revoked` can still commit.
        """
        self._check_open()
        wanted = as_subscription(topics)
        listener = RebalanceListener(
            as_callback(on_assigned, "on_assigned"),
            as_callback(on_revoked, "on_revoked"),
            as_callback(on_lost, "on_lost"),
        )
        if self.config["group.id"] is None:
            raise Misuse(ErrorCode.INVALID_GROUP_ID, "subscribe() needs the setting group.id; or use assign()")
        if self._member is None and self._positions.partitions:
            raise Misuse(ErrorCode.INVALID_REQUEST, "subscribe() after assign(): unsubscribe() first")
        pattern = wanted if isinstance(wanted, re.Pattern) else None
        if pattern is not None:
            await self._cluster.refresh_retrying(None, timeout_ms=self.config["default.api.timeout.ms"])
        self._check_open()
        if self._member is None:
            self._member = self._new_member()
        self._listener, self._pattern = listener, pattern
        self._topics = wanted if isinstance(wanted, frozenset) else self._matching_topics()
        self._member.subscribe(self._topics, self._listener)

    def _new_member(self) -> GroupMember:
        kind = ConsumerGroupMember if self.config["group.protocol"] == "consumer" else ClassicGroupMember
        # Heartbeats go on for ever: they must not keep a consumer alive that everybody else has dropped.
        me, positions = weakref.ref(self), self._positions

        async def before_revoke() -> None:
            if (consumer := me()) is not None:
                await consumer._commit_before_revoke()

        def notify() -> None:
            if (consumer := me()) is not None:
                consumer._on_summons()

        hooks = Hooks(lambda partitions: positions.assign(partitions, with_group=True), before_revoke, notify)
        return kind(self._cluster, self.config, hooks)

    def _on_summons(self) -> None:
        self._summoned = True
        self._fetcher.arrived.set()

    def _matching_topics(self) -> frozenset[str]:
        assert self._pattern is not None
        found = frozenset(
            name
            for name, info in self._cluster.metadata.topics.items()
            if self._pattern.fullmatch(name) and not (info.is_internal and self.config["exclude.internal.topics"])
        )
        if found:
            self._cluster.wait_warnings.end("pattern")
        else:
            why = "topics are looked at every metadata.max.age.ms"
            self._cluster.wait_warnings.begin("pattern", f"no topic matches {self._pattern.pattern!r}", why)
        return found

    async def unsubscribe(self) -> None:
        """Leave the group, or let go of what was assigned. What was handed out counts as done, as for `close`."""
        self._check_open()
        self._end_iteration()
        self._positions.came_back()
        await self._stop_settling()
        if self._member is not None:
            await self._member.leave()
            self._member = None
        self._positions.assign((), with_group=False)

    def assignment(self) -> set[TopicPartition]:
        """What this consumer reads now."""
        return set(self._positions.partitions)

    def subscription(self) -> set[str]:
        """The topics this consumer shares with its group."""
        return set(self._topics) if self._member is not None else set()

    def group_metadata(self) -> GroupMetadata:
        """For `producer.send_offsets_to_transaction`: who commits, so that a stale member is refused (KIP-447)."""
        if self.config["group.id"] is None:
            raise Misuse(ErrorCode.INVALID_GROUP_ID, "group_metadata() needs the setting group.id")
        return GroupMetadata(self.config["group.id"]) if self._member is None else self._member.metadata

    # --- reading --------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: float = 1_000, max_records: int | None = None) -> list[ConsumerRecord]:
        """Records, as soon as there are any; an empty list when `timeout_ms` passes without."""
        default = self.config["max.poll.records"]
        most = default if max_records is None else as_number(max_records, "max_records", 1, INT32_MAX)
        return await self._poll(lambda: self._fetcher.take(most), timeout_ms)

    async def poll_arrow(self, timeout_ms: float = 1_000, max_bytes: int | None = None) -> pa.Table:
        """Records as Arrow columns (key, value, topic, partition, offset, timestamp, timestampType).

        No Python object is made for any record. Takes whatever has arrived, up to about `max_bytes`, which is
        fetch.max.bytes unless given; max.poll.records does not apply.
        """
        import pyarrow as pa

        from semel.records.columns import schema

        default = self.config["fetch.max.bytes"]
        most = default if max_bytes is None else as_number(max_bytes, "max_bytes", 1, INT32_MAX)
        parts = await self._poll(lambda: self._fetcher.take_arrow(most), timeout_ms)
        return pa.Table.from_batches(parts, schema=schema())

    def __aiter__(self) -> AsyncConsumer:
        """Records one by one, for ever. Asking for the next one says that the last one is done."""
        return self

    async def __anext__(self) -> ConsumerRecord:
        while (record := self.next_at_hand()) is None:
            await self.look_ahead()
        return record

    def next_at_hand(self) -> ConsumerRecord | None:
        """The next record, if nothing needs a `poll` first. For iteration, from the thread that uses the consumer."""
        ahead, member = self._ahead, self._member
        if ahead is None or self._summoned or self._closed or ahead.handed == len(ahead.records):
            return None
        if self._auto_commits and self._loop.time() >= self._next_auto_commit:
            return None
        if member is not None:
            member.alive()
        ahead.handed += 1
        return ahead.records[ahead.handed - 1]

    async def look_ahead(self, timeout_ms: float = 1_000) -> None:
        """Have records ready for `next_at_hand`, if any come in time."""
        most = self.config["max.poll.records"]
        for ahead in await self._poll(lambda: self._fetcher.look_ahead(most), timeout_ms):
            self._ahead = ahead

    def _take_handed(self) -> None:
        """Make the positions say what iteration has handed out."""
        if self._ahead is not None:
            self._fetcher.take_handed(self._ahead)

    def _end_iteration(self) -> None:
        """Positions are about to change: what was looked ahead at is looked at again."""
        self._take_handed()
        self._ahead = None

    async def _poll(self, take: Callable[[], list[T]], timeout_ms: float) -> list[T]:
        self._check_open()
        timeout_s = as_timeout_s(timeout_ms)
        if self._polling:
            raise Misuse(
                ErrorCode.INVALID_REQUEST, "poll() is running already: one thread at a time may use a consumer"
            )
        self._polling = True
        self._end_iteration()
        if self.undelivered:
            self._positions.take_back()
        self._positions.came_back()
        self.undelivered = self._summoned = False
        try:
            return await self._poll_until(take, self._loop.time() + timeout_s)
        finally:
            self._polling = False
            if self._member is not None:
                self._member.poll_over()

    async def _poll_until(self, take: Callable[[], list[T]], deadline: float) -> list[T]:
        while True:
            if self._member is not None:
                self._member.polled()
            self._fetcher.arrived.clear()
            await self._settle_group(deadline)
            self._auto_commit()
            self._locate()
            self._fetcher.raise_error()
            taken = [] if self._member is not None and self._member.handing_over else take()
            self._fetcher.ask()
            if taken:
                return taken
            left = deadline - self._loop.time()
            if left <= 0:
                return []
            try:
                async with asyncio.timeout(min(left, 1.0)):
                    await self._fetcher.arrived.wait()
            except TimeoutError:
                continue

    async def _settle_group(self, deadline: float) -> None:
        """Take part in a rebalance, for as long as this poll may last; the next one goes on with it."""
        member = self._member
        if member is None:
            return
        await self._follow_topics(member)
        self._look_for_missing()
        if self._settling is None:
            if not member.busy:
                return
            self._settling = self._loop.create_task(member.settle())
            self._settling.add_done_callback(lambda _: self._fetcher.arrived.set())
        await asyncio.wait([self._settling], timeout=max(0.0, deadline - self._loop.time()))
        if self._settling.done():
            task, self._settling = self._settling, None
            task.result()

    async def _follow_topics(self, member: GroupMember) -> None:
        """From time to time: are there new topics for the pattern, or new partitions for the group?"""
        if self._loop.time() < self._next_topic_check:
            return
        self._next_topic_check = self._loop.time() + self.config["metadata.max.age.ms"] / 1000
        try:
            if self._pattern is not None:
                await self._cluster.refresh_metadata(None)
                self._topics = self._matching_topics()
                member.subscribe(self._topics, self._listener)
            await member.follow_topics()
        except Retriable:
            return  # looked at again next time

    def _look_for_missing(self) -> None:
        """Topics that are subscribed to and not there are asked for again and again, beside everything else."""
        missing = frozenset() if self._pattern is not None else self._topics - self._cluster.metadata.topics.keys()
        now = self._loop.time()
        if missing and now >= self._next_look and (self._looking is None or self._looking.done()):
            self._next_look = now + self.config["retry.backoff.max.ms"] / 1000
            self._looking = self._loop.create_task(self._look_for(missing))

    async def _look_for(self, topics: frozenset[str]) -> None:
        try:
            await self._cluster.refresh_metadata(topics)
        except KafkaError:
            return  # whoever needs them for more than this raises it
        if topics & self._cluster.metadata.topics.keys():
            self._next_topic_check = self._loop.time()  # the leader of the group shares out anew
            self._fetcher.arrived.set()

    def _locate(self) -> None:
        """Find positions that are not known, in the background."""
        if self._locating is not None:
            if not self._locating.done():
                return
            task, self._locating = self._locating, None
            error = task.exception()
            if isinstance(error, Retriable):
                if not isinstance(error, Disconnected):
                    self._cluster.wait_warnings.begin("positions", "where to read on is not known", error.why)
            elif error is not None:
                raise error
            else:
                self._cluster.wait_warnings.end("positions")
        if self._positions.needing_committed() or self._positions.needing_reset():
            self._locating = self._loop.create_task(self._find_positions())
            self._locating.add_done_callback(lambda _: self._fetcher.arrived.set())

    async def _find_positions(self) -> None:
        wanted = self._positions.needing_committed()
        if wanted:
            asked_in = {partition: self._positions[partition].generation for partition in wanted}
            found = await self.committed(wanted)
            for partition in wanted:
                given = found.get(partition)
                offset, epoch = (None, -1) if given is None else (given.offset, given.leader_epoch)
                self._positions.on_committed(partition, offset, epoch, asked_in=asked_in[partition])
        resets = self._positions.needing_reset()
        if not resets:
            return
        found_at, missing = await ask_leaders(
            self._cluster, resets, self._isolation, self.config["default.api.timeout.ms"]
        )
        for partition, answer in found_at.items():
            offset, epoch = answer.offset, answer.leader_epoch
            if offset < 0:  # no record is that young: go on at the end
                offset, epoch = (await self.end_offsets([partition]))[partition], -1
            self._positions.on_offset(partition, resets[partition], offset, epoch)
        if missing is not None:
            self._fetcher.arrived.set()  # what was found can be read already
            self._fruitless += 1
            await asyncio.sleep(self._cluster.backoff(self._fruitless))
        else:
            self._fruitless = 0

    def backoff(self, tries: int) -> float:
        """Seconds to wait before something that failed `tries` times is tried again."""
        return self._cluster.backoff(tries)

    # --- committing -----------------------------------------------------------------------------------------------

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Write down how far the group has read: up to what was handed out, unless told otherwise.

        Handed out is what `poll` has returned, and of an iteration every record up to the one in hand. Raises
        `CommitFailed` when the group has moved on, and may have given this member's partitions away.
        """
        if self.config["group.id"] is None:
            raise Misuse(ErrorCode.INVALID_GROUP_ID, "commit() needs the setting group.id")
        await self._commit(self._to_commit(offsets))

    async def _commit(self, given: dict[TopicPartition, OffsetAndMetadata]) -> None:
        committed_as = self.group_metadata()
        try:
            await commit_offsets(self._cluster, committed_as, given, timeout_ms=self.config["default.api.timeout.ms"])
        except CommitFailed as error:
            if self._member is not None:
                self._member.on_commit_refused(error.code, committed_as)
            if error.code in _REBALANCING and given.keys() <= self._positions.partitions.keys():
                why = f"{error.why}. The group is rebalancing: poll(), then commit what is still assigned"
                raise CommitFailed(error.code, why) from error
            raise

    def commit_soon(
        self,
        offsets: Offsets | None = None,
        on_done: Callable[[KafkaError | None], object] | None = None,
    ) -> None:
        """As `commit`, without waiting; `on_done` gets the error, or None. Without it an error is logged."""
        if self.config["group.id"] is None:
            raise Misuse(ErrorCode.INVALID_GROUP_ID, "commit_soon() needs the setting group.id")
        given = self._to_commit(offsets)

        async def run() -> None:
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
                _log.warning("offsets of group '%s' were not committed: %s", self.config["group.id"], failed)

        task = self._loop.create_task(run())
        self._committing.add(task)
        task.add_done_callback(self._committing.discard)

    async def committed(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets; partitions without one are left out. Waits for open transactions."""
        group_id = self.config["group.id"]
        if group_id is None:
            raise Misuse(ErrorCode.INVALID_GROUP_ID, "committed() needs the setting group.id")
        return await fetch_committed(
            self._cluster, group_id, as_partitions(partitions), timeout_ms=self.config["default.api.timeout.ms"]
        )

    def _to_commit(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the user commits, and thereby says to be done."""
        if offsets is not None:
            given = as_offsets(offsets)
            self._take_handed()
            for partition, committed in given.items():
                self._positions.on_commit(partition, committed.offset)
            return given
        given = self.consumed()
        self._positions.came_back()
        return given

    def _done(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """As `consumed`, less what the user was handed last and has not come back from."""
        self._take_handed()
        return {p: OffsetAndMetadata(*entry.done) for p, entry in self._positions.positions().items()}

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What `commit` would write down: for each partition, the offset after what was handed out."""
        self._take_handed()
        return {
            partition: OffsetAndMetadata(entry.position, entry.leader_epoch)
            for partition, entry in self._positions.positions().items()
        }

    def _auto_commit(self) -> None:
        if not self._auto_commits or self._loop.time() < self._next_auto_commit:
            return
        self._next_auto_commit = self._loop.time() + self.config["auto.commit.interval.ms"] / 1000
        if self._positions.positions() and not self._committing:
            self.commit_soon(self._done())

    async def _commit_before_revoke(self) -> None:
        await asyncio.gather(*self._committing, return_exceptions=True)
        deadline = self._loop.time() + self.config["default.api.timeout.ms"] / 1000
        while self._auto_commits:
            epoch = self.group_metadata().generation_id
            try:
                await self._commit(self._done())
            except KafkaError as error:
                # These partitions are this member's until they are let go of, whatever its epoch is by now (KIP-848).
                if error.code is not ErrorCode.STALE_MEMBER_EPOCH or not await self._newer_epoch(epoch, deadline):
                    return  # the group has moved on: whoever reads on, reads from the last commit that counted
            else:
                return

    async def _newer_epoch(self, epoch: int, deadline: float) -> bool:
        """Whether a heartbeat has brought this member another epoch, in time."""
        while self._member is not None and self._member.in_touch and self._loop.time() < deadline:
            if self._member.metadata.generation_id != epoch:
                return True
            await asyncio.sleep(self._cluster.backoff(1))
        return False

    # --- closing --------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise error_for(ErrorCode.INVALID_REQUEST, "the consumer is closed")

    async def _stop_settling(self) -> None:
        for task in (self._settling, self._locating, self._looking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._settling = self._locating = self._looking = None

    async def close(self, timeout_ms: float = 30_000) -> None:
        """Commit if enable.auto.commit says so, leave the group, and let go of the connections.

        Committed is what was handed out. While an exception is on its way (in a `finally`, an `except`, or at the end
        of a `with`) what was handed out last counts as not done: it is not committed, and comes again. Goodbyes take
        `timeout_ms` at most: without them the group waits for session.timeout.ms, and goes on.
        """
        await self.close_after(timeout_ms, in_order=sys.exc_info()[0] is None)

    async def close_after(self, timeout_ms: float, *, in_order: bool) -> None:
        """As `close`; `in_order` says whether what was handed out last is done."""
        if self._closed:
            return
        timeout_s = as_timeout_s(timeout_ms)
        self._end_iteration()
        if in_order and not self.undelivered:
            self._positions.came_back()
        self._closed = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._stop_settling()
                if self._member is not None:
                    await self._member.leave()
                elif self._positions.positions():
                    await self._commit_before_revoke()
        except TimeoutError:
            pass  # the group finds out by itself
        finally:
            await self._let_go()

    #: How long the goodbye of a consumer that nobody closed may take.
    abandon_within_s = 2.0

    async def abandon(self) -> None:
        """End without having been closed: leave the group, so that others read on, and commit nothing.

        What was handed out last may not have been worked on, so it is read again.
        """
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(self.abandon_within_s):
                await self._stop_settling()
                if self._member is not None:
                    await self._member.quit()
        except TimeoutError:
            pass  # the group finds out by itself
        finally:
            await self._let_go()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self._cluster.origin.lost:
            drop(self, "a consumer", self._loop)

    async def _let_go(self) -> None:
        await self._fetcher.close()
        for task in list(self._committing):
            task.cancel()
        await asyncio.gather(*self._committing, return_exceptions=True)
        await self._cluster.close()
