"""What a consumer is subscribed to, and its part in the group: joins, rebalances, and new topics.

Guarantees: a rebalance is carried out only within `poll`; topics that do not exist yet are looked for until they do.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable

from semel.client.cluster.cluster import Cluster
from semel.client.consumer.fetcher import Fetcher
from semel.client.consumer.iteration import Iteration
from semel.client.consumer.lifetime import Lifetime
from semel.client.group.classic_member import ClassicGroupMember
from semel.client.group.consumer_member import ConsumerGroupMember
from semel.client.group.member import GroupMember, Hooks, RebalanceListener
from semel.config import Values
from semel.errors import ErrorCode, KafkaError, Misuse, Retriable
from semel.machines.reading.fetch_positions import FetchPositions
from semel.machines.transactions.producer import GroupMetadata
from semel.machines.values import TopicPartition


class Subscription:
    """The subscription of one consumer. `member` is None while it is not subscribed."""

    def __init__(
        self,
        cluster: Cluster,
        config: Values,
        positions: FetchPositions,
        fetcher: Fetcher,
        iteration: Iteration,
        lifetime: Lifetime,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._positions = positions
        self._fetcher = fetcher
        self._iteration = iteration
        self._lifetime = lifetime
        self._loop = asyncio.get_running_loop()
        self.member: GroupMember | None = None
        self._pattern: re.Pattern[str] | None = None
        self._topics: frozenset[str] = frozenset()
        self._listener = RebalanceListener()
        self._settling: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._next_look = 0.0
        self._next_topic_check = self._loop.time() + config["metadata.max.age.ms"] / 1000

    def topics(self) -> set[str]:
        """The topics that this consumer shares with its group."""
        return set(self._topics) if self.member is not None else set()

    def group_metadata(self) -> GroupMetadata:
        """Who commits, for `producer.send_offsets_to_transaction`: a stale member is refused (KIP-447)."""
        if self._config["group.id"] is None:
            raise Misuse(ErrorCode.INVALID_GROUP_ID, "group_metadata() needs the setting group.id")
        return GroupMetadata(self._config["group.id"]) if self.member is None else self.member.metadata

    async def subscribe(
        self,
        wanted: re.Pattern[str] | frozenset[str],
        listener: RebalanceListener,
        before_revoke: Callable[[], Awaitable[None]],
    ) -> None:
        """Share these topics with the group. `before_revoke` is called before partitions are given up."""
        if self._config["group.id"] is None:
            raise Misuse(ErrorCode.INVALID_GROUP_ID, "subscribe() needs the setting group.id; or use assign()")
        if self.member is None and self._positions.partitions:
            raise Misuse(ErrorCode.INVALID_REQUEST, "subscribe() after assign(): unsubscribe() first")
        pattern = wanted if isinstance(wanted, re.Pattern) else None
        if pattern is not None:
            await self._cluster.refresh_retrying(None, timeout_ms=self._config["default.api.timeout.ms"])
        self._lifetime.check_open()
        if self.member is None:
            self._set_member(self._new_member(before_revoke))
        assert self.member is not None
        self._listener, self._pattern = listener, pattern
        self._topics = wanted if isinstance(wanted, frozenset) else self._matching_topics(wanted)
        self.member.subscribe(self._topics, self._listener)

    def _new_member(self, before_revoke: Callable[[], Awaitable[None]]) -> GroupMember:
        # Heartbeats never end. They hold these parts but not the consumer, so that one that is dropped can be freed.
        kind = ConsumerGroupMember if self._config["group.protocol"] == "consumer" else ClassicGroupMember
        positions = self._positions

        def read(partitions: Iterable[TopicPartition]) -> None:
            # In order: that of a set is another one in each process, and so would be the requests.
            positions.assign(sorted(partitions), with_group=True)

        hooks = Hooks(read, before_revoke, self._summon)
        return kind(self._cluster, self._config, hooks)

    def _set_member(self, member: GroupMember | None) -> None:
        self.member = self._iteration.member = member

    def _summon(self) -> None:
        """The group needs this member in `poll`."""
        self._iteration.must_poll = True
        self._fetcher.arrived.set()

    def _matching_topics(self, pattern: re.Pattern[str]) -> frozenset[str]:
        found = frozenset(
            name
            for name, info in self._cluster.metadata.topics.items()
            if pattern.fullmatch(name) and not (info.is_internal and self._config["exclude.internal.topics"])
        )
        if found:
            self._cluster.wait_warnings.end("pattern")
        else:
            why = "topics are listed again every metadata.max.age.ms"
            self._cluster.wait_warnings.begin("pattern", f"no topic matches {pattern.pattern!r}", why)
        return found

    # --- during poll ----------------------------------------------------------------------------------------------

    @property
    def is_handing_over(self) -> bool:
        """Whether partitions are changing hands: then `poll` returns no records."""
        return self.member is not None and self.member.handing_over

    async def settle(self, deadline: float) -> None:
        """Take part in a rebalance until `deadline`. If it takes longer, the next `poll` continues it."""
        member = self.member
        if member is None:
            return
        member.polled()
        await self._follow_topics(member)
        self._look_for_missing_topics()
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
        """Every metadata.max.age.ms: look for new topics of the pattern, and new partitions for the group."""
        if self._loop.time() < self._next_topic_check:
            return
        self._next_topic_check = self._loop.time() + self._config["metadata.max.age.ms"] / 1000
        try:
            if self._pattern is not None:
                await self._cluster.refresh_metadata(None)
                self._topics = self._matching_topics(self._pattern)
                member.subscribe(self._topics, self._listener)
            await member.follow_topics()
        except Retriable:
            return  # tried again next time

    def _look_for_missing_topics(self) -> None:
        """Look in the background for subscribed topics that do not exist."""
        missing = frozenset() if self._pattern is not None else self._topics - self._cluster.metadata.topics.keys()
        now = self._loop.time()
        if missing and now >= self._next_look and (self._looking is None or self._looking.done()):
            self._next_look = now + self._config["retry.backoff.max.ms"] / 1000
            self._looking = self._loop.create_task(self._look_for(missing))

    async def _look_for(self, topics: frozenset[str]) -> None:
        try:
            await self._cluster.refresh_metadata(topics)
        except KafkaError:
            return  # raised where the topic is needed for more than this
        if topics & self._cluster.metadata.topics.keys():
            self._next_topic_check = self._loop.time()  # the leader of the group assigns again
            self._fetcher.arrived.set()

    # --- the end --------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop what runs in the background, except heartbeats."""
        for task in (self._settling, self._looking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._settling = self._looking = None

    async def leave(self) -> None:
        """Leave the group in good order: commit if that is configured, and tell the listener."""
        if self.member is not None:
            await self.member.leave()

    async def quit(self) -> None:
        """Leave the group without committing."""
        if self.member is not None:
            await self.member.quit()

    def forget(self) -> None:
        """The consumer is not subscribed any more."""
        self._set_member(None)
