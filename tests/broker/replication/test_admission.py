"""C3: a leader asks the coordinator of another broker, together and one at a time, and checks its role afterwards."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.broker.replication.admission import Admissions, Asked, Verification
from semel.broker.replication.partition import ReplicatedPartition
from semel.errors import Disconnected, ErrorCode, Refused
from semel.machines.producing.verifications import Verifications
from semel.machines.transactions.replies import topic_results
from semel.machines.values import TopicPartition
from semel.wire.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Coordinator:
    """Broker 2 coordinates. It gives the answers in turn, the last one for ever."""

    def __init__(self, *codes: ErrorCode) -> None:
        self.codes = list(codes)
        self.requests: list[AddPartitionsToTxnRequest] = []
        self.suspected: list[int] = []
        self.in_flight = 0
        self.peers = self
        self.coordinators = SimpleNamespace(coordinator_of=lambda transactional_id: 2)
        loop = asyncio.get_running_loop()
        broker = SimpleNamespace(node_id=1, spawn=loop.create_task, loop=loop, now_ms=lambda: 0)
        self.admissions = Admissions(cast("Any", broker), cast("Any", self))

    def suspect(self, broker: int) -> None:
        self.suspected.append(broker)

    async def ask(self, broker: int, lane: str, request: Any, version: int, timeout_s: float) -> Any:
        assert (broker, version) == (2, 5)
        self.requests.append(request)
        self.in_flight += 1
        assert self.in_flight == 1, "one question is on its way at a time"
        await asyncio.sleep(0.001)
        self.in_flight -= 1
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        if code is ErrorCode.NETWORK_EXCEPTION:
            raise Disconnected(code, "gone")
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                    transactional_id=each.transactional_id,
                    topic_results=topic_results(
                        {TopicPartition(topic.name, one): code for topic in each.topics for one in topic.partitions}
                    ),
                )
                for each in request.transactions
            ]
        )


def verified(*targets: TopicPartition) -> dict[TopicPartition, Verification]:
    return {target: Partition().verification() for target in targets}


def test_what_comes_while_a_question_is_on_its_way_is_asked_together() -> None:
    async def story() -> None:
        coordinator = Coordinator(ErrorCode.NONE)
        ask = coordinator.admissions.ask
        answers = await asyncio.gather(
            ask(Asked("a", 1, 0, True), verified(P0)),
            *(ask(Asked(name, 2, 0, True), verified(P0, P1)) for name in "bcd"),
            ask(Asked("b", 2, 0, True), verified(P1)),
        )
        assert all(code is ErrorCode.NONE for codes in answers for code in codes.values())
        assert sum(len(request.transactions) for request in coordinator.requests) == 4, "one question is asked once"
        assert len(coordinator.requests) <= 2

    asyncio.run(story())


@pytest.mark.parametrize(
    "moving",
    [
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ],
)
def test_a_coordinator_that_moves_is_asked_again(moving: ErrorCode) -> None:
    async def story() -> None:
        coordinator = Coordinator(moving, moving, ErrorCode.NONE)
        assert await coordinator.admissions.ask(Asked("a", 1, 0, False), verified(P0)) == {P0: ErrorCode.NONE}
        assert len(coordinator.requests) == 3
        assert (2 in coordinator.suspected) == (moving is ErrorCode.NETWORK_EXCEPTION)

    asyncio.run(story())


def test_a_refusal_is_final() -> None:
    async def story() -> None:
        coordinator = Coordinator(ErrorCode.PRODUCER_FENCED)
        answer = await coordinator.admissions.ask(Asked("a", 1, 0, False), verified(P0))
        assert answer == {P0: ErrorCode.PRODUCER_FENCED}
        assert len(coordinator.requests) == 1

    asyncio.run(story())


class Partition:
    """A partition that this broker leads, and whose guards a marker can end."""

    def __init__(self) -> None:
        self.partition = object.__new__(ReplicatedPartition)
        self.partition.topic, self.partition.index = cast("Any", SimpleNamespace(name="t")), 0
        self.partition.is_local = True
        self.guards: list[object] = []
        self.verifications = Verifications()
        producers = SimpleNamespace(check_verified=self._check, verifications=self.verifications)
        self.partition._log = cast("Any", SimpleNamespace(start_verification=self._start, producers=producers))
        self.lead(4)

    def lead(self, epoch: int) -> None:
        leader = SimpleNamespace(state=SimpleNamespace(leader_epoch=epoch))
        self.partition.replica = cast("Any", SimpleNamespace(leader=leader, leads=True))

    def _start(self, *arguments: Any, **options: Any) -> object:
        self.verifications.begin(1, 0, 0, 0, True)
        if not self.guards:
            self.guards.append(object())
        return self.guards[-1]

    def _check(self, producer_id: int, producer_epoch: int, guard: object) -> None:
        if guard not in self.guards:
            raise Refused(ErrorCode.INVALID_TXN_STATE)

    def verification(self) -> Verification:
        begun = Verification(self.partition, (1, 0), 0, supports_epoch_bump=True)
        begun.begin(0)
        return begun


def test_an_answer_counts_only_under_the_leadership_that_it_was_asked_under() -> None:
    led = Partition()
    verification = led.verification()
    assert verification.check() is led.guards[0]
    led.lead(6)
    with pytest.raises(Refused) as refused:
        verification.check()
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_producer_that_is_refused_in_the_end_leaves_nothing_to_wait_for() -> None:
    """The coordinator was moving at first, so it was asked again."""
    led = Partition()
    verification = led.verification()
    verification.begin(0)
    assert led.verifications
    verification.answered(ErrorCode.PRODUCER_FENCED)
    assert not led.verifications


def test_the_coordinator_is_asked_again_if_a_marker_has_ended_the_guard_meanwhile() -> None:
    """Under protocol V2 a producer goes on before the markers of its last transaction are everywhere."""

    async def story() -> None:
        coordinator, led = Coordinator(ErrorCode.NONE), Partition()
        verification = led.verification()
        led.guards.clear()
        answer = await coordinator.admissions.ask(Asked("a", 1, 0, False), {P0: verification})
        assert answer == {P0: ErrorCode.NONE}
        assert len(coordinator.requests) == 2
        verification.check_verified()

    asyncio.run(story())
