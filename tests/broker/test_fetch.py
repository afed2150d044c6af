"""Fetch: long polls, limits, sessions, and what a reader may see."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from semel.wire.messages.fetch import FetchResponse
from tests.broker.raw import Raw, batch, fetch_request, stored_batches, values_of


@pytest.fixture
def other(broker: Broker) -> Iterator[Raw]:
    with Raw(broker) as connection:
        yield connection


def test_a_long_poll_is_woken_by_the_append(raw: Raw, other: Raw, topic: str) -> None:
    raw.create(topic)
    began = time.monotonic()
    waiting = raw.send(fetch_request({(topic, 0): 0}, max_wait_ms=45_000), 12)
    other.produce(topic, batch(b"news"))
    assert values_of(raw.receive(waiting).responses[0].partitions[0]) == [b"news"]
    assert time.monotonic() - began < 40, "woken, and not at the end of its time"


def test_a_long_poll_ends_empty_when_its_time_is_up(raw: Raw, topic: str) -> None:
    raw.create(topic)
    began = time.monotonic()
    assert values_of(raw.fetch(topic, max_wait_ms=150)) == []
    assert time.monotonic() - began > 0.1


def test_a_long_poll_waits_for_enough_bytes(raw: Raw, other: Raw, topic: str) -> None:
    raw.create(topic)
    waiting = raw.send(fetch_request({(topic, 0): 0}, max_wait_ms=8000, min_bytes=300), 12)
    other.produce(topic, batch(b"x" * 100))
    other.produce(topic, batch(b"y" * 100))
    assert len(values_of(raw.receive(waiting).responses[0].partitions[0])) == 2


def test_a_long_poll_ends_when_its_topic_is_deleted(broker: Broker, raw: Raw, other: Raw, topic: str) -> None:
    from semel.wire.messages.admin import DeleteTopicsRequest

    raw.create(topic)
    waiting = raw.send(fetch_request({(topic, 0): 0}, max_wait_ms=8000), 12)
    other.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=topic)]), 6)
    response = raw.receive(waiting)
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_client_that_goes_away_during_a_long_poll_leaves_nobody_watching(broker: Broker, topic: str) -> None:
    from tests.support.waiting import until

    with Raw(broker) as connection:
        connection.create(topic)
        connection.send(fetch_request({(topic, 0): 0}, max_wait_ms=60_000), 12)
        watchers = broker.server.topics.partition(topic, 0).watchers
        until(lambda: len(watchers) == 1, what="the fetch to wait")
    until(lambda: not watchers, what="the fetch to be forgotten")


def test_the_first_batch_comes_even_when_it_is_larger_than_asked(raw: Raw, topic: str) -> None:
    raw.create(topic)
    raw.produce(topic, batch(b"x" * 1000))
    raw.produce(topic, batch(b"y"))
    data = raw.fetch(topic, max_bytes=10, partition_max_bytes=10)
    assert values_of(data) == [b"x" * 1000]


def test_max_bytes_bounds_all_partitions_together(raw: Raw, topic: str) -> None:
    raw.create(topic, partitions=3)
    for partition in range(3):
        raw.produce(topic, batch(b"x" * 500), partition=partition)
    request = fetch_request({(topic, n): 0 for n in range(3)}, max_bytes=600)
    partitions = raw.ask(request, 12).responses[0].partitions
    assert [len(values_of(one)) for one in partitions] == [1, 0, 0]
    assert [one.high_watermark for one in partitions] == [1, 1, 1]


def test_offsets_outside_the_log_are_refused(raw: Raw, topic: str) -> None:
    raw.create(topic)
    raw.produce(topic, batch())
    assert raw.fetch(topic, 7).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert raw.fetch(topic, -3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_leader_epochs_of_another_time_are_refused(raw: Raw, topic: str) -> None:
    raw.create(topic)
    assert raw.fetch(topic, current_leader_epoch=4).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert raw.fetch(topic, current_leader_epoch=0, max_wait_ms=0).error_code == ErrorCode.NONE


def test_nobody_reads_as_a_replica(raw: Raw, topic: str) -> None:
    raw.create(topic)
    response = raw.ask(fetch_request({(topic, 0): 0}, replica_id=2), 12)
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert response.responses == []


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_is_served(raw: Raw, topic: str, version: int) -> None:
    topic_id = raw.create(topic)
    raw.produce(topic, batch(b"v"))
    request = fetch_request({(topic, 0): 0})
    request.topics[0].topic_id = topic_id
    response = raw.ask(request, version)
    assert values_of(response.responses[0].partitions[0]) == [b"v"]


def test_two_readers_of_one_partition_are_both_woken(broker: Broker, topic: str) -> None:
    with Raw(broker) as one, Raw(broker) as two, Raw(broker) as writer:
        writer.create(topic)
        waiting = [(raw, raw.send(fetch_request({(topic, 0): 0}, max_wait_ms=8000), 12)) for raw in (one, two)]
        writer.produce(topic, batch(b"both"))
        assert [values_of(raw.receive(sent).responses[0].partitions[0]) for raw, sent in waiting] == [[b"both"]] * 2


def test_a_reader_beside_a_writer_sees_every_offset_once_and_in_order(broker: Broker, topic: str) -> None:
    with Raw(broker) as writer, Raw(broker) as reader:
        writer.create(topic)

        def write() -> None:
            for number in range(300):
                writer.produce(topic, batch(b"%d" % number))

        thread = threading.Thread(target=write)
        thread.start()
        seen: list[bytes | None] = []
        offset = 0
        while offset < 300:
            data = reader.fetch(topic, offset)
            assert data.error_code == ErrorCode.NONE
            for stored in stored_batches(data):
                assert stored.base_offset == offset
                offset = stored.next_offset
            assert offset <= data.high_watermark
            seen += values_of(data)
        thread.join()
    assert seen == [b"%d" % number for number in range(300)]


# Sessions (KIP-227)


def begin(raw: Raw, topic: str, partitions: int, **options: int) -> FetchResponse:
    response: FetchResponse = raw.ask(
        fetch_request({(topic, n): 0 for n in range(partitions)}, session_epoch=0, max_wait_ms=0, **options), 12
    )
    return response


def test_a_session_answers_with_what_changed_only(raw: Raw, topic: str) -> None:
    raw.create(topic, partitions=3)
    first = begin(raw, topic, 3)
    assert first.session_id != 0
    assert len(first.responses[0].partitions) == 3
    raw.produce(topic, batch(b"new"), partition=1)
    second = raw.ask(fetch_request({}, session_id=first.session_id, session_epoch=1, max_wait_ms=0), 12)
    assert [one.partition_index for one in second.responses[0].partitions] == [1]
    moved = fetch_request({(topic, 1): 1}, session_id=first.session_id, session_epoch=2, max_wait_ms=0)
    assert raw.ask(moved, 12).responses == []


def test_a_session_long_polls_and_forgets_partitions(raw: Raw, topic: str) -> None:
    raw.create(topic, partitions=2)
    session = begin(raw, topic, 2).session_id
    raw.produce(topic, batch(), partition=0)
    left = fetch_request({}, session_id=session, session_epoch=1, max_wait_ms=50, forgotten={topic: [0]})
    assert raw.ask(left, 12).responses == []


def test_a_session_wants_its_next_epoch_and_its_own_id(raw: Raw, topic: str) -> None:
    raw.create(topic)
    session = begin(raw, topic, 1).session_id
    again = raw.ask(fetch_request({}, session_id=session, session_epoch=5), 12)
    assert again.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    unknown = raw.ask(fetch_request({}, session_id=session + 1, session_epoch=1), 12)
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    mixed = raw.ask(fetch_request({}, session_id=session, session_epoch=1), 13)
    assert mixed.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_closed_session_is_gone(raw: Raw, topic: str) -> None:
    raw.create(topic)
    session = begin(raw, topic, 1).session_id
    closing = fetch_request({(topic, 0): 0}, session_id=session, session_epoch=-1, max_wait_ms=0)
    assert raw.ask(closing, 12).session_id == 0
    gone = raw.ask(fetch_request({}, session_id=session, session_epoch=1), 12)
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_partition_that_had_its_turn_lets_the_others_go_first(raw: Raw, topic: str) -> None:
    raw.create(topic, partitions=2)
    for partition in (0, 1):
        for _ in range(2):
            raw.produce(topic, batch(b"x" * 500), partition=partition)
    first = begin(raw, topic, 2, max_bytes=600)
    assert [len(values_of(one)) for one in first.responses[0].partitions] == [1, 0]
    second = fetch_request({(topic, 0): 1}, session_id=first.session_id, session_epoch=1, max_bytes=600, max_wait_ms=0)
    served = [one for one in raw.ask(second, 12).responses[0].partitions if values_of(one)]
    assert [one.partition_index for one in served] == [1]


@pytest.mark.semel(**{"max.incremental.fetch.session.cache.slots": 2})
def test_a_full_cache_gives_no_session_and_full_answers(semel_broker: Broker, topic: str) -> None:
    with Raw(semel_broker) as raw:
        raw.create(topic)
        assert [begin(raw, topic, 1).session_id != 0 for _ in range(3)] == [True, True, False]
        assert len(semel_broker.server.fetch_sessions) == 2
