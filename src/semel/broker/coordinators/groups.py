"""The group coordinator in the broker: its host, parked requests, and offsets that are committed in transactions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from semel.broker.coordinators.host import CoordinatorHost, partition_count
from semel.broker.topics.internal import CONSUMER_OFFSETS
from semel.machines.contract import AnswerParked, Decision
from semel.machines.groups.coordinator import GroupCoordinator, GroupSettings, TopicInfo
from semel.machines.groups.registry import GroupTimeouts

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer


class ParkedRequests:
    """Requests that wait for an answer from the coordinator, by token. Performs `AnswerParked`."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last_token = 0

    def new_token(self) -> int:
        """A token for a request that may have to wait."""
        self._last_token += 1
        return self._last_token

    def park(self, token: int, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        """Park a request. The future gets its answer."""
        future = self._waiting[token] = loop.create_future()
        return future

    async def answer_of(self, token: int, future: asyncio.Future[Any]) -> Any:
        """Wait for the answer to a parked request."""
        try:
            return await future
        finally:
            self._waiting.pop(token, None)

    def perform(self, effect: AnswerParked) -> None:
        future = self._waiting.pop(effect.token, None)
        if future is not None and not future.done():
            future.set_result(effect.reply)

    def is_awaited(self, effect: AnswerParked) -> bool:
        return True


class GroupShell:
    """The group coordinator of this broker and what belongs to it."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        settings = broker.settings
        values = {name: getattr(settings, name) for name in GroupSettings.__dataclass_fields__}
        values["offsets_topic_num_partitions"] = partition_count(broker, CONSUMER_OFFSETS)
        self.coordinator = GroupCoordinator(GroupSettings(**values), _topics(broker))
        self.parked = ParkedRequests()
        self.host = CoordinatorHost(
            broker,
            CONSUMER_OFFSETS,
            self.coordinator,
            {AnswerParked: self.parked},
            codec=settings["offsets.topic.compression.codec"],
            replay_marker=self.marker_written,
        )
        broker.topics.listeners.append(self._topics_changed)
        for group_id in broker.stores.group_settings:
            self.configure(group_id)

    def configure(self, group_id: str) -> None:
        """Apply a group's own settings."""
        own = self._broker.stores.group_settings
        values = own.values(group_id, self._broker.settings)
        timeouts = GroupTimeouts(values["consumer.session.timeout.ms"], values["consumer.heartbeat.interval.ms"])
        self.coordinator.set_timeouts(group_id, timeouts if own.overrides_of(group_id) else None)

    def answer_or_park(self, decision: Decision[Any], token: int) -> Any:
        """The reply, or a coroutine that waits for it."""
        if decision.reply is not None:
            return self.host.answer(decision)
        # First park: the effects of the decision may answer the request.
        future = self.parked.park(token, self._broker.loop)
        self.host.settle(decision)
        return self.parked.answer_of(token, future)

    def marker_written(self, partition: int, producer_id: int, commit: bool) -> None:
        """A transaction's marker is in this partition of `__consumer_offsets`: its offsets count or are dropped."""
        self.coordinator.complete_transaction(producer_id, partition, commit)

    def _topics_changed(self) -> None:
        if self._broker.cluster is not None:
            # Another broker may have created the internal topic.
            self.coordinator.set_partition_count(partition_count(self._broker, CONSUMER_OFFSETS))
        for decision in self.coordinator.topics_changed(_topics(self._broker), self._broker.now_ms()):
            self.host.settle(decision)


def _topics(broker: BrokerServer) -> dict[str, TopicInfo]:
    return {topic.name: TopicInfo(topic.topic_id, len(topic.partitions)) for topic in broker.topics.topics.values()}
