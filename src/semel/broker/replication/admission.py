"""May a transactional write go ahead? The question to the coordinator of the transaction, wherever it is (C3).

Guarantees:

- The coordinator's yes is committed before the write: a transaction that has data has a coordinator that knows it.
- One question is on its way to a broker at a time. What comes meanwhile is asked together.
- An answer counts only for the leadership that it was asked under, and while no marker was written meanwhile: that
  ends the guard of a `Verification`, which is checked again when the batch is appended (scenario 29). Under protocol V2
  it may be the marker of the transaction before, so the coordinator is asked again with a new guard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from semel.broker.replication.partition import ReplicatedPartition
from semel.broker.replication.peer_queues import PeerQueues
from semel.errors import Disconnected, ErrorCode, Refused
from semel.machines.values import TopicPartition, by_topic
from semel.wire.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership
    from semel.broker.server import BrokerServer
    from semel.broker.topics.partition import Partition

ADD_VERSION = 5
LANE = "transactions"
TIMEOUT_S = 5.0
#: How long a write waits for a coordinator that moves, and for the markers of the transaction before. Then the client
#: has to retry.
MOST_MOVING_S, MOST_HELD_S = 1.5, 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.05

#: The coordinator is elsewhere, not ready yet or does not answer.
_MOVING = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)


class Asked(NamedTuple):
    """Who asks for what. `verify_only` (V1): the partitions must have been added before; else (V2) they are now."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool


class _Question(NamedTuple):
    asked: Asked
    partitions: tuple[TopicPartition, ...]
    answer: asyncio.Future[dict[TopicPartition, ErrorCode]]

    def take(self, codes: dict[TopicPartition, ErrorCode]) -> None:
        if not self.answer.done():  # else nobody waits any more
            self.answer.set_result(codes)


class Verification:
    """One partition that a producer is about to write to: the leadership it had when the coordinator was asked, and the
    guard that a marker ends."""

    __slots__ = ("_arguments", "_is_first", "_supports_epoch_bump", "guard", "leader_epoch", "partition")

    def __init__(
        self, partition: Partition, producer: tuple[int, int], first_sequence: int, *, supports_epoch_bump: bool
    ) -> None:
        assert isinstance(partition, ReplicatedPartition)
        self.partition = partition
        self._arguments = (*producer, first_sequence)
        self._supports_epoch_bump = supports_epoch_bump
        #: None if the producer's transaction is open in the partition already.
        self.guard: Any = None
        self.leader_epoch = -1
        self._is_first = False

    def begin(self, now_ms: int) -> None:
        """Take a guard under the leadership that the partition has now; `Refused` if another broker leads it."""
        # Also when it is begun again because the coordinator moves.
        self._is_first |= not self.partition.log.producers.verifications.is_of(*self._arguments[:2])
        self.guard = self.partition.log.start_verification(
            *self._arguments, now_ms=now_ms, supports_epoch_bump=self._supports_epoch_bump
        )
        self.leader_epoch = self.partition.leader_epoch

    def answered(self, code: ErrorCode) -> None:
        """The coordinator's answer."""
        if self._is_first and (log := self.partition.open_log) is not None:
            log.producers.verifications.answered(*self._arguments[:2], code)

    def check(self) -> Any:
        """The guard to append with; `Refused` if this broker has lost the partition since."""
        if self.partition.leader_epoch != self.leader_epoch:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.partition} has another leader since")
        return self.guard

    def check_verified(self) -> None:
        """`Refused` if this broker has lost the partition, or a marker has ended the guard."""
        self.check()
        self.partition.log.producers.check_verified(*self._arguments[:2], self.guard)

    def was_ended_by_a_marker(self) -> bool:
        try:
            self.check_verified()
        except Refused as refused:
            return refused.code is ErrorCode.INVALID_TXN_STATE
        return False


class Admissions:
    """Asks the coordinators of other brokers."""

    def __init__(self, broker: BrokerServer, membership: Membership) -> None:
        self._broker = broker
        self._membership = membership
        self._questions = PeerQueues[_Question](broker.spawn, self._ask_broker, self._not_answered)

    async def ask(
        self, asked: Asked, verifications: Mapping[TopicPartition, Verification]
    ) -> dict[TopicPartition, ErrorCode]:
        """The coordinator's answer for each partition. It is asked again while it moves, for a bounded time."""
        partitions = tuple(verifications)
        clock, pause_s = self._broker.loop.time, FIRST_PAUSE_S
        since_s = clock()
        while True:
            codes = await self._ask_once(asked, partitions)
            most_s = 0.0
            if any(code in _MOVING for code in codes.values()):
                most_s = MOST_MOVING_S
            elif ErrorCode.CONCURRENT_TRANSACTIONS in codes.values() or any(
                verifications[target].was_ended_by_a_marker()
                for target, code in codes.items()
                if code is ErrorCode.NONE
            ):
                most_s = MOST_HELD_S
            if clock() - since_s >= most_s:
                return codes
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            for target, verification in verifications.items():
                try:
                    verification.begin(self._broker.now_ms())
                except Refused as refused:
                    codes[target] = refused.code
                    return codes

    async def _ask_once(self, asked: Asked, partitions: tuple[TopicPartition, ...]) -> dict[TopicPartition, ErrorCode]:
        coordinator = self._membership.coordinators.coordinator_of(asked.transactional_id)
        if coordinator < 0:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if coordinator == self._broker.node_id:
            return await self._ask_ourselves(asked, partitions)
        answer: asyncio.Future[dict[TopicPartition, ErrorCode]] = self._broker.loop.create_future()
        self._questions.add(coordinator, _Question(asked, partitions, answer))
        return await answer

    async def _ask_ourselves(
        self, asked: Asked, partitions: tuple[TopicPartition, ...]
    ) -> dict[TopicPartition, ErrorCode]:
        shell = self._broker.transactions
        if shell.host.ready_for(asked.transactional_id):
            await shell.settled(asked.transactional_id)
        if asked.verify_only:
            codes = shell.coordinator.verify(*asked[:3], partitions)
        else:
            decision = shell.coordinator.add_implicitly(*asked[:3], partitions, self._broker.now_ms())
            codes = dict.fromkeys(partitions, ErrorCode(shell.host.settle(decision)))
        try:
            await shell.host.on_disk(asked.transactional_id)
        except Refused as refused:
            return dict.fromkeys(partitions, refused.code)
        return codes

    async def _ask_broker(self, coordinator: int, questions: list[_Question]) -> None:
        # The same question of several requests is asked once.
        together: dict[Asked, dict[TopicPartition, None]] = {}
        for question in questions:
            together.setdefault(question.asked, {}).update(dict.fromkeys(question.partitions))
        answers = await self._send(coordinator, together)
        for question in questions:
            codes = answers.get(question.asked, {})
            question.take({each: codes.get(each, ErrorCode.UNKNOWN_SERVER_ERROR) for each in question.partitions})

    def _not_answered(self, coordinator: int, questions: list[_Question], error: Exception) -> None:
        self._membership.suspect(coordinator)
        code = error.code if isinstance(error, Disconnected) else ErrorCode.NETWORK_EXCEPTION
        for question in questions:
            question.take(dict.fromkeys(question.partitions, code))

    async def _send(
        self, coordinator: int, together: dict[Asked, dict[TopicPartition, None]]
    ) -> dict[Asked, dict[TopicPartition, ErrorCode]]:
        row = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            transactions=[
                row(
                    transactional_id=asked.transactional_id,
                    producer_id=asked.producer_id,
                    producer_epoch=asked.producer_epoch,
                    verify_only=asked.verify_only,
                    topics=[
                        topic(name=name, partitions=numbers) for name, numbers in by_topic(partitions).items()
                    ],
                )
                for asked, partitions in together.items()
            ]
        )
        response: AddPartitionsToTxnResponse = await self._membership.peers.ask(
            coordinator, LANE, request, ADD_VERSION, TIMEOUT_S
        )
        if response.error_code != ErrorCode.NONE:
            code = ErrorCode(response.error_code)
            return {asked: dict.fromkeys(partitions, code) for asked, partitions in together.items()}
        if len(response.results_by_transaction) != len(together):
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, f"broker {coordinator} has not answered every question")
        answers = {}
        for asked, result in zip(together, response.results_by_transaction, strict=True):
            answers[asked] = {
                TopicPartition(each.name, one.partition_index): ErrorCode(one.partition_error_code)
                for each in result.topic_results
                for one in each.results_by_partition
            }
        return answers
