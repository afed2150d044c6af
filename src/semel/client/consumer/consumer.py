"""The consumer: reads records of assigned or subscribed partitions in order, and hides what was not committed.

The rules are in `machines`: `fetch_positions` knows where reading stands, `read_committed` which records are shown, and
the group's `member` which partitions belong to this consumer. The parts of the consumer are in this folder: `fetcher`,
`iteration`, `positions`, `position_finder`, `subscription`, `committer`. None of them knows the consumer: that is how
Python can free one that is dropped.

By default a consumer shows committed records only (isolation.level=read_committed), as librdkafka does. Kafka's Java
client shows all records by default.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from semel.client.argument_lists import as_callback, as_subscription, as_timeout_s, as_values
from semel.client.arguments import INT32_MAX, as_number, require_pyarrow
from semel.client.cluster.cluster import Cluster
from semel.client.consumer.committer import OffsetCommitter
from semel.client.consumer.fetcher import ConsumerRecord, Fetcher
from semel.client.consumer.iteration import Iteration
from semel.client.consumer.lifetime import Lifetime
from semel.client.consumer.positions import ConsumerPositions
from semel.client.consumer.subscription import Subscription
from semel.client.delegation import method_of
from semel.client.finalizers import drop, keep_task
from semel.client.forking import OfOneProcess
from semel.client.group.member import Callback, RebalanceListener
from semel.client.offset_arguments import PartitionLike, as_partitions
from semel.client.offset_requests import READ_COMMITTED, READ_UNCOMMITTED
from semel.config import CONSUMER, ConfigError, Values
from semel.environment import MACHINE, Environment
from semel.errors import ErrorCode, Misuse
from semel.machines.reading.fetch_positions import FetchPositions
from semel.machines.values import TopicPartition
from semel.net.connection import Connection

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class AsyncConsumer(OfOneProcess):
    """A consumer for asyncio. `semel.Consumer` is the same for blocking code.

    >>> import asyncio, semel
    >>> with semel.Producer({"bootstrap.servers": broker}) as producer:
    ...     _ = producer.send("parcels", "sent").result()
    >>> async def first_value():
    ...     async with AsyncConsumer({"bootstrap.servers": broker, "auto.offset.reset": "earliest"}) as consumer:
    ...         consumer.assign([("parcels", 0)])
    ...         async for record in consumer:
    ...             return record.value
    >>> asyncio.run(first_value())
    b'sent'

    Create it on the running loop. Close it, or use `async with`.
    """

    def __init__(
        self,
        config: Values | Mapping[str, object],
        *,
        connect: Callable[[str, int], Awaitable[Connection]] | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        self.config = values = as_values(config, CONSUMER)
        if values["session.timeout.ms"] <= values["heartbeat.interval.ms"]:
            raise ConfigError(
                f"heartbeat.interval.ms={values['heartbeat.interval.ms']} must be below "
                f"session.timeout.ms={values['session.timeout.ms']}: a third of it is usual"
            )
        self._cluster = cluster = Cluster(
            values,
            auto_create_topics=values["allow.auto.create.topics"],
            connect=connect,
            environment=environment,
        )
        self._loop = asyncio.get_running_loop()
        self._lifetime = lifetime = Lifetime()
        isolation_level = READ_COMMITTED if values["isolation.level"] == "read_committed" else READ_UNCOMMITTED
        self._positions = positions = FetchPositions(values["auto.offset.reset"])
        self._fetcher = fetcher = Fetcher(cluster, positions, values)
        self._iteration = iteration = Iteration(fetcher, self._loop.time)
        self._seeker = ConsumerPositions(cluster, values, positions, fetcher, iteration, lifetime, isolation_level)
        self._subscription = Subscription(cluster, values, positions, fetcher, iteration, lifetime)
        self._committer = OffsetCommitter(cluster, values, positions, iteration, self._subscription)
        #: The next record of the iteration, without a `poll`. From the thread that uses the consumer.
        self.next_record = iteration.next_record
        self._polling = False
        #: Whether it was ever said what to read. An empty `assign` says so too.
        self._has_a_task = False
        #: The records of the last `poll` did not reach the caller, who was interrupted. Set from any thread.
        self.undelivered = False
        #: What `close` began, and waits for.
        self._ending: asyncio.Future[None] | None = None

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close_after(30_000, in_order=kind is None)

    # --- what to read ---------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[PartitionLike]) -> None:
        """Read these partitions, without a group. A partition may be given as a pair of topic and number."""
        self._lifetime.check_open()
        wanted = as_partitions(partitions)
        if self._subscription.member is not None:
            raise Misuse(ErrorCode.INVALID_REQUEST, "assign() after subscribe(): unsubscribe() first")
        self._iteration.end()
        self._positions.assign(wanted, with_group=self.config["group.id"] is not None)
        self._has_a_task = True

    async def subscribe(
        self,
        topics: Iterable[str] | str | re.Pattern[str],
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Share these topics with the other members of group.id. With a compiled pattern, new topics are included.

        The callbacks get a list of partitions and may be coroutines. `on_revoked` can still commit.
        """
        self._lifetime.check_open()
        wanted = as_subscription(topics)
        listener = RebalanceListener(
            as_callback(on_assigned, "on_assigned"),
            as_callback(on_revoked, "on_revoked"),
            as_callback(on_lost, "on_lost"),
        )
        await self._subscription.subscribe(wanted, listener, self._committer.commit_before_revoke)
        self._has_a_task = True

    async def unsubscribe(self) -> None:
        """Leave the group, or drop the assigned partitions. As for `close`, the records handed out count as done."""
        self._lifetime.check_open()
        self._iteration.end()
        self._positions.came_back()
        await self._stop_background_tasks()
        await self._subscription.leave()
        self._subscription.forget()
        self._positions.assign((), with_group=False)
        self._has_a_task = False

    def assignment(self) -> set[TopicPartition]:
        """The partitions that this consumer reads now."""
        return set(self._positions.partitions)

    subscription = method_of("_subscription", Subscription.topics)
    group_metadata = method_of("_subscription", Subscription.group_metadata)

    # --- where to read --------------------------------------------------------------------------------------------

    position = method_of("_seeker", ConsumerPositions.position)
    seek = method_of("_seeker", ConsumerPositions.seek)
    seek_to_beginning = method_of("_seeker", ConsumerPositions.seek_to_beginning)
    seek_to_end = method_of("_seeker", ConsumerPositions.seek_to_end)
    rewind = method_of("_seeker", ConsumerPositions.rewind)
    pause = method_of("_seeker", ConsumerPositions.pause)
    resume = method_of("_seeker", ConsumerPositions.resume)
    paused = method_of("_seeker", ConsumerPositions.paused)
    lag = method_of("_seeker", ConsumerPositions.lag)
    beginning_offsets = method_of("_seeker", ConsumerPositions.beginning_offsets)
    end_offsets = method_of("_seeker", ConsumerPositions.end_offsets)
    offsets_for_times = method_of("_seeker", ConsumerPositions.offsets_for_times)
    partitions_for = method_of("_seeker", ConsumerPositions.partitions_for)

    # --- how far the group has read -------------------------------------------------------------------------------

    commit = method_of("_committer", OffsetCommitter.commit)
    commit_soon = method_of("_committer", OffsetCommitter.commit_soon)
    committed = method_of("_committer", OffsetCommitter.committed)
    consumed = method_of("_committer", OffsetCommitter.consumed)

    # --- reading --------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: float = 1_000, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return records as soon as there are any, or an empty list after `timeout_ms`."""
        default = self.config["max.poll.records"]
        most = default if max_records is None else as_number(max_records, "max_records", 1, INT32_MAX)
        return await self._poll(lambda: self._fetcher.take(most), timeout_ms)

    async def poll_arrow(self, timeout_ms: float = 1_000, max_bytes: int | None = None) -> pa.Table:
        """Return records as Arrow columns (key, value, topic, partition, offset, timestamp, timestampType).

        No Python object is created for any record. Takes all records that have arrived, up to about `max_bytes`, by
        default fetch.max.bytes. max.poll.records does not apply.
        """
        require_pyarrow("poll_arrow")
        import pyarrow as pa

        from semel.records.columns import schema

        default = self.config["fetch.max.bytes"]
        most = default if max_bytes is None else as_number(max_bytes, "max_bytes", 1, INT32_MAX)
        parts = await self._poll(lambda: self._fetcher.take_arrow(most), timeout_ms)
        return pa.Table.from_batches(parts, schema=schema())

    def __aiter__(self) -> AsyncConsumer:
        """Records one by one, without an end. Asking for the next record says that the last one is done."""
        return self

    async def __anext__(self) -> ConsumerRecord:
        while (record := self.next_record()) is None:
            await self.look_ahead()
        return record

    async def look_ahead(self, timeout_ms: float = 1_000) -> None:
        """Have records ready for `next_record`, if any come in time."""
        most = self.config["max.poll.records"]
        await self._poll(lambda: self._iteration.look_ahead(most), timeout_ms)

    async def _poll(self, take: Callable[[], list[T]], timeout_ms: float) -> list[T]:
        self._lifetime.check_open()
        timeout_s = as_timeout_s(timeout_ms)
        if not self._has_a_task:
            raise Misuse(ErrorCode.INVALID_REQUEST, "there is nothing to read: call subscribe() or assign() first")
        if self._polling:
            raise Misuse(
                ErrorCode.INVALID_REQUEST, "poll() is running already: one thread at a time may use a consumer"
            )
        self._polling = True
        self._iteration.end()
        if self.undelivered:
            self._positions.take_back()
        self._positions.came_back()
        self.undelivered = self._iteration.must_poll = False
        try:
            return await self._poll_until(take, self._loop.time() + timeout_s)
        finally:
            self._polling = False
            if (member := self._subscription.member) is not None:
                member.poll_over()

    async def _poll_until(self, take: Callable[[], list[T]], deadline: float) -> list[T]:
        fetcher = self._fetcher
        while True:
            fetcher.arrived.clear()
            await self._subscription.settle(deadline)
            self._committer.commit_if_due()
            self._seeker.finder.start()
            fetcher.raise_error()
            taken = [] if self._subscription.is_handing_over else take()
            fetcher.ask()
            if taken:
                return taken
            left = deadline - self._loop.time()
            if left <= 0:
                return []
            try:
                async with asyncio.timeout(min(left, 1.0)):
                    await fetcher.arrived.wait()
            except TimeoutError:
                continue

    def backoff(self, tries: int) -> float:
        """Seconds to wait before something that failed `tries` times is tried again."""
        return self._cluster.backoff(tries)

    # --- closing --------------------------------------------------------------------------------------------------

    async def _stop_background_tasks(self) -> None:
        await self._subscription.stop()
        await self._seeker.finder.stop()

    async def close(self, timeout_ms: float = 30_000) -> None:
        """Commit if enable.auto.commit is set, leave the group, and close the connections.

        All records that were handed out are committed. While an exception is being handled (in a `finally`, an
        `except`, or at the end of a `with`) the last ones count as not done: they are not committed, and are read
        again. Leaving the group takes `timeout_ms` at most; otherwise the group waits for session.timeout.ms. If this
        is cancelled, it goes on in the background; call it again to wait for it.
        """
        await self.close_after(timeout_ms, in_order=sys.exc_info()[0] is None)

    async def close_after(self, timeout_ms: float, *, in_order: bool) -> None:
        """As `close`. `in_order` says whether the records handed out last are done."""
        if self._lifetime.closed:
            if self._ending is not None:
                await asyncio.shield(self._ending)
            return
        if sys.exc_info()[0] is GeneratorExit:
            # The caller's coroutine is being thrown away, and can wait for nothing.
            self._set_closed()
            self._loop.call_soon(lambda: keep_task(self._loop, self._quit()))
            return
        timeout_s = as_timeout_s(timeout_ms)
        self._iteration.end()
        if in_order and not self.undelivered:
            self._positions.came_back()
        self._set_closed()
        # Whoever cancels this waits no longer, and the consumer leaves all the same: the group would wait for it.
        self._ending = asyncio.ensure_future(self._end(timeout_s))
        await asyncio.shield(self._ending)

    async def _end(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._stop_background_tasks()
                if self._subscription.member is not None:
                    await self._subscription.leave()
                elif self._positions.positions():
                    await self._committer.commit_before_revoke()
        except TimeoutError:
            pass  # the group notices by itself, after session.timeout.ms
        finally:
            await self._release()

    #: How long a consumer that nobody closed may take to leave its group: see `semel.client.finalizers`.
    abandon_within_s = 2.0

    async def abandon(self) -> None:
        """End without having been closed: leave the group, so that other members continue, and commit nothing.

        The records that were handed out last may not have been processed, so they are read again.
        """
        if self._lifetime.closed:
            return
        self._set_closed()
        await self._quit()

    async def _quit(self) -> None:
        try:
            async with asyncio.timeout(self.abandon_within_s):
                await self._stop_background_tasks()
                await self._subscription.quit()
        except TimeoutError:
            pass  # the group notices by itself, after session.timeout.ms
        finally:
            await self._release()

    def _set_closed(self) -> None:
        self._lifetime.closed = self._iteration.must_poll = True

    def __del__(self) -> None:
        lifetime = getattr(self, "_lifetime", None)
        if lifetime is not None and not lifetime.closed and not self._cluster.origin.lost:
            drop(self, "a consumer", self._loop)

    async def _release(self) -> None:
        try:
            await self._fetcher.close()
            await self._committer.close()
        finally:
            await self._cluster.close()
