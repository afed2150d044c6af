"""The group coordinator's shell: `__consumer_offsets`, parked requests, and the transactions that commit offsets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from semel.broker.coordinators.host import CoordinatorHost, partition_count
from semel.broker.topics.internal import CONSUMER_OFFSETS
from semel.errors import ErrorCode, InvariantViolation, Refused
from semel.machines.contract import Answer, Decision, Effect, StateRecord
from semel.machines.groups.coordinator import GroupCoordinator, GroupSettings, TopicInfo
from semel.machines.groups.records import read
from semel.machines.groups.registry import GroupTimeouts
from semel.machines.values import ProducerIdentity
from semel.records.batch import Batch
from semel.records.markers import read_marker
from semel.wire.messages.coordinator_records import GroupMetadataKey, OffsetCommitKey

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer


class GroupHost(CoordinatorHost):
    """Runs the one group coordinator of this broker."""

    def __init__(self, broker: BrokerServer) -> None:
        settings = broker.settings
        values = {name: getattr(settings, name) for name in GroupSettings.__dataclass_fields__}
        values["offsets_topic_num_partitions"] = partition_count(broker, CONSUMER_OFFSETS)
        self.machine = GroupCoordinator(GroupSettings(**values), _topics(broker))
        super().__init__(broker, CONSUMER_OFFSETS, self.machine)
        self.codec = settings["offsets.topic.compression.codec"]
        self._parked: dict[int, asyncio.Future[Any]] = {}
        self._next_token = 0
        broker.topics.listeners.append(self._topics_changed)
        for group_id in broker.group_settings:
            self.configure(group_id)

    def configure(self, group_id: str) -> None:
        """Let a group's own settings hold."""
        own = self.broker.group_settings
        values = own.values(group_id, self.broker.settings)
        timeouts = GroupTimeouts(values["consumer.session.timeout.ms"], values["consumer.heartbeat.interval.ms"])
        self.machine.set_timeouts(group_id, timeouts if own.changed(group_id) else None)

    def new_token(self) -> int:
        """A number for a request that may have to wait."""
        self._next_token += 1
        return self._next_token

    def answer_or_park(self, decision: Decision[Any], token: int) -> Any:
        """The reply now, or a coroutine that waits for it."""
        if decision.reply is not None:
            return self.answer(decision)
        # Before anything else happens: the answer may come while the decision is carried out.
        future = self.broker.loop.create_future()
        self._parked[token] = future
        self.settle(decision)
        return self._parked_answer(token, future)

    async def _parked_answer(self, token: int, future: asyncio.Future[Any]) -> Any:
        try:
            return await future
        finally:
            self._parked.pop(token, None)

    def perform(self, effect: Effect) -> None:
        if not isinstance(effect, Answer):
            raise InvariantViolation(f"the group coordinator asked for {effect}")
        future = self._parked.pop(effect.token, None)
        if future is not None and not future.done():
            future.set_result(effect.reply)

    def is_awaited(self, effects: tuple[Effect, ...]) -> bool:
        """Always: an effect is the answer to a parked request."""
        return True

    def replay(self, record: StateRecord, producer: ProducerIdentity | None) -> None:
        self.machine.replay(record, producer_id=-1 if producer is None else producer.producer_id)

    def check_readable(self, record: StateRecord) -> str:
        found = read(record.key, record.value)
        if found is None:
            raise Refused(ErrorCode.INVALID_RECORD, "its key is of no known type")
        key = found[0]
        return str(key.group if isinstance(key, OffsetCommitKey | GroupMetadataKey) else key.group_id)

    def replay_marker(self, partition: int, batch: Batch) -> None:
        self.machine.complete_transaction(batch.producer_id, partition, read_marker(batch).commit)

    def marker_written(self, partition: int, producer_id: int, commit: bool) -> None:
        """The outcome of a transaction is in this partition of `__consumer_offsets`."""
        self.machine.complete_transaction(producer_id, partition, commit)

    def append_refused(self, decision: Decision[Any], code: ErrorCode) -> Any:
        failed = self.machine.append_failed(decision, code)
        self.perform_all(failed.effects)
        return failed.reply

    def _topics_changed(self) -> None:
        for decision in self.machine.topics_changed(_topics(self.broker), self.broker.now_ms()):
            self.settle(decision)


def _topics(broker: BrokerServer) -> dict[str, TopicInfo]:
    return {topic.name: TopicInfo(topic.topic_id, len(topic.partitions)) for topic in broker.topics.topics.values()}
