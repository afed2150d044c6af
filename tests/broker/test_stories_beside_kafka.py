"""Random stories of several producers, told to Apache Kafka and to Semel: same answers, records and transactions.

Of each of two transactional ids there are two producers, which fence each other; one of each pair speaks protocol V2,
the other V1. They write, repeat, leave sequences out, commit offsets, commit and abort, also out of turn. Beside them
is an idempotent producer and one that is neither. Without the fix it found, of a fenced producer whose refused batch
disturbed its successor, story 7 fails.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from semel.wire.messages.admin import DeleteRecordsRequest
from semel.wire.messages.fetch import ListOffsetsRequest
from semel.wire.messages.metadata import FindCoordinatorRequest
from semel.wire.messages.offsets import OffsetFetchRequest
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from tests.broker.raw import Raw, batch, produce_request, values_of
from tests.support.apache_kafka import ApacheKafka
from tests.support.waiting import until

pytestmark = pytest.mark.java

STEPS = 40
#: Kafka's answers while it is busy with something; Semel waits by itself.
NOT_YET = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
KINDS = {"init": 3.0, "renew": 1.5, "add": 3.0, "write": 8.0, "offsets": 2.0, "end": 4.0, "plain": 1.0, "delete": 0.5}
HOW = {"next": 8.0, "again": 2.0, "gap": 0.7, "from 0": 0.7}
TIMESTAMP_MS = 1_790_000_000_000

Step = tuple[str, tuple[Any, ...]]


class Producer:
    """What one client knows."""

    def __init__(self, transactional_id: str | None, *, is_v2: bool) -> None:
        self.transactional_id = transactional_id
        self.is_v2 = is_v2
        self.take(-1, -1)

    def take(self, producer_id: int, epoch: int) -> None:
        self.identity = producer_id, epoch
        self.sequences: dict[str, int] = {}
        self.last: dict[str, bytes] = {}


class Side:
    """One of the two brokers, and the clients that talk to it."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.raw = Raw(bootstrap)
        self.topics = (f"{name}-a", f"{name}-b")
        self.ids = (f"{name}-x", f"{name}-y")
        self.group = name
        self.producers = [Producer(one, is_v2=is_v2) for one in self.ids for is_v2 in (True, False)]
        self.producers.append(Producer(None, is_v2=True))
        self._numbers: dict[int, int] = {}
        self._written = 0
        for topic in self.topics:
            self.raw.create(topic)
        until(self._is_coordinated, what="the coordinators to be there")

    def _is_coordinated(self) -> bool:
        for kind, keys in ((1, list(self.ids)), (0, [self.group])):
            found = self.raw.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=keys), 4).coordinators
            if any(one.error_code for one in found):
                return False
        codes = {row.error_code for row in self._described()} | {self._offsets(stable=False)[0]}
        return not codes & set(NOT_YET)

    def is_stale(self, number: int) -> bool:
        """Whether another producer of its id has been given a later identity."""
        own = self.producers[number]
        return any(
            other.identity > own.identity for other in self.producers if other.transactional_id == own.transactional_id
        )

    def _number(self, producer_id: int) -> int:
        """Producer ids are numbered as they appear."""
        return -1 if producer_id == -1 else self._numbers.setdefault(producer_id, len(self._numbers))

    def _ask(self, request: Any, version: int, code_of: Callable[[Any], int]) -> tuple[Any, str]:
        answers: list[Any] = []

        def is_settled() -> bool:
            answers[:] = [self.raw.ask(request, version)]
            return code_of(answers[0]) not in NOT_YET

        until(is_settled, what=f"an answer to {type(request).__name__}")
        return answers[0], ErrorCode(code_of(answers[0])).name

    # What a story is made of

    def init(self, number: int, renews: bool) -> Any:
        producer = self.producers[number]
        producer_id, epoch = producer.identity if renews else (-1, -1)
        request = InitProducerIdRequest(
            transactional_id=producer.transactional_id,
            transaction_timeout_ms=600_000,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        answer, code = self._ask(request, 5, lambda one: int(one.error_code))
        if code == "NONE":
            producer.take(answer.producer_id, answer.producer_epoch)
        return code, self._number(answer.producer_id), answer.producer_epoch

    def add(self, number: int, topic: str) -> Any:
        producer = self.producers[number]
        if producer.transactional_id is None:
            return None
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.transactional_id,
            v3_and_below_producer_id=producer.identity[0],
            v3_and_below_producer_epoch=producer.identity[1],
            v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[0])],
        )

        def code_of(answer: Any) -> int:
            return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

        return self._ask(request, 3, code_of)[1]

    def write(self, number: int, topic: str, how: str) -> Any:
        producer = self.producers[number]
        producer_id, epoch = producer.identity
        sequence = producer.sequences.get(topic, 0)
        if producer_id < 0 or (how == "again" and topic not in producer.last):
            return None
        self._written += 1
        data = producer.last.get(topic, b"")
        if how != "again":
            data = batch(
                b"%d-1" % self._written,
                b"%d-2" % self._written,
                timestamp_ms=TIMESTAMP_MS,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence={"next": sequence, "gap": sequence + 3, "from 0": 0}[how],
                transactional=producer.transactional_id is not None,
            )
        request = produce_request(topic, data, transactional_id=producer.transactional_id)
        answer, code = self._ask(
            request,
            12 if producer.is_v2 else 11,
            lambda one: int(one.responses[0].partition_responses[0].error_code),
        )
        if code == "NONE" and how != "again":
            producer.sequences[topic], producer.last[topic] = sequence + 2, data
        return code, answer.responses[0].partition_responses[0].base_offset

    def plain(self, topic: str) -> Any:
        self._written += 1
        return self.raw.produce(topic, batch(b"%d" % self._written, timestamp_ms=TIMESTAMP_MS)).base_offset

    def offsets(self, number: int, topic: str, offset: int) -> Any:
        producer = self.producers[number]
        producer_id, epoch = producer.identity
        if producer.transactional_id is None:
            return None
        codes = []
        if not producer.is_v2:
            added = AddOffsetsToTxnRequest(
                transactional_id=producer.transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                group_id=self.group,
            )
            codes.append(self._ask(added, 3, lambda one: int(one.error_code))[1])
        row = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=producer.transactional_id,
            group_id=self.group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=[row])],
        )
        version = 5 if producer.is_v2 else 4
        codes.append(self._ask(request, version, lambda one: int(one.topics[0].partitions[0].error_code))[1])
        return codes

    def end(self, number: int, commits: bool) -> Any:
        producer = self.producers[number]
        producer_id, epoch = producer.identity
        if producer.transactional_id is None:
            return None
        request = EndTxnRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commits,
        )
        answer, code = self._ask(request, 5 if producer.is_v2 else 4, lambda one: int(one.error_code))
        if not producer.is_v2:
            return code
        if code == "NONE":
            producer.take(answer.producer_id, answer.producer_epoch)
        return code, self._number(answer.producer_id), answer.producer_epoch

    def delete(self, topic: str, before: int) -> Any:
        row = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=before)
        asked = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[row])
        answer = self.raw.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=5000), 2).topics[0].partitions[0]
        return ErrorCode(answer.error_code).name, answer.low_watermark

    # What can be seen of it

    def look(self) -> list[Any]:
        """Everything, once no outcome is being written."""
        until(
            lambda: not any(row.transaction_state.startswith("Prepare") for row in self._described()),
            what="the markers to be written",
        )
        seen: list[Any] = []
        for topic in self.topics:
            start, end = self._offset(topic, -2), self._offset(topic, -1)
            read = self.raw.fetch(topic, start, isolation_level=1, max_wait_ms=0)
            stable = max(start, read.last_stable_offset)  # Kafka may leave it before the start for a while
            aborted = [
                (self._number(row.producer_id), row.first_offset)
                for row in read.aborted_transactions or ()
                if row.first_offset < stable
            ]
            seen.append((topic, start, end, stable, sorted(aborted), values_of(read)))
            asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])
            active = self.raw.ask(DescribeProducersRequest(topics=[asked]), 0).topics[0].partitions[0].active_producers
            seen += sorted(
                (self._number(row.producer_id), row.producer_epoch, row.last_sequence, row.current_txn_start_offset)
                for row in active
            )
        for row in self._described():
            names = sorted(topic.topic for topic in row.topics)
            state = (self._number(row.producer_id), row.producer_epoch, row.transaction_state, names)
            seen.append(state if row.error_code == 0 else ErrorCode(row.error_code).name)
        return [*seen, self._offsets(stable=False), self._offsets(stable=True)]

    def _described(self) -> Any:
        return self.raw.ask(DescribeTransactionsRequest(transactional_ids=list(self.ids)), 0).transaction_states

    def _offset(self, topic: str, timestamp: int) -> int:
        row = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[row])
        return int(self.raw.ask(ListOffsetsRequest(replica_id=-1, topics=[asked]), 7).topics[0].partitions[0].offset)

    def _offsets(self, *, stable: bool) -> tuple[int, Any]:
        topics = [
            OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[0]) for topic in self.topics
        ]
        asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=self.group, topics=topics)
        found = self.raw.ask(OffsetFetchRequest(groups=[asked], require_stable=stable), 9).groups[0]
        rows = ((row.name, row.partitions[0].committed_offset, row.partitions[0].error_code) for row in found.topics)
        return found.error_code, sorted(rows)


def next_step(chance: random.Random, number: int, before: Step | None, topics: tuple[str, ...]) -> Step:
    """Mostly something that makes sense: the producers begin, and who did something last goes on."""
    producer, topic = chance.randrange(5), chance.choice(topics)
    if before is not None and before[0] in ("init", "add", "write", "offsets") and chance.random() < 0.5:
        producer = before[1][0]
    if number < 5 and chance.random() < 0.6:
        return "init", (number, False)
    kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
    steps: dict[str, Step] = {
        "init": ("init", (producer, False)),
        "renew": ("init", (producer, True)),
        "add": ("add", (producer, topic)),
        "write": ("write", (producer, topic, chance.choices(list(HOW), list(HOW.values()))[0])),
        "offsets": ("offsets", (producer, topic, chance.randrange(100))),
        "end": ("end", (producer, chance.random() < 0.6)),
        "plain": ("plain", (topic,)),
        "delete": ("delete", (topic, chance.choice((-1, 1, 3, 6)))),
    }
    return steps[kind]


@pytest.fixture(scope="module")
def bootstraps(apache_kafka: ApacheKafka) -> Iterator[tuple[str, str]]:
    with Broker() as semel:
        yield apache_kafka.bootstrap_servers, semel.bootstrap_servers


@pytest.mark.parametrize("seed", range(1, 8))
def test_random_stories_of_producers_are_answered_and_stored_alike(bootstraps: tuple[str, str], seed: int) -> None:
    chance, name = random.Random(seed), f"story-{uuid.uuid4()}"
    sides = [Side(bootstrap, name) for bootstrap in bootstraps]
    told: list[Step] = []
    for number in range(STEPS):
        step = next_step(chance, number, told[-1] if told else None, sides[0].topics)
        if step[0] == "init" and step[1][1] and sides[0].is_stale(step[1][0]):
            continue  # in Kafka this ends its successor's transaction (docs/not-kafka.md)
        told.append(step)
        kafkas, ours = [getattr(side, step[0])(*step[1]) for side in sides]
        assert ours == kafkas, told
        if number % 4 == 3 or step[0] in ("end", "delete"):
            kafkas, ours = [side.look() for side in sides]
            assert ours == kafkas, told
    for side in sides:
        side.raw.socket.close()
