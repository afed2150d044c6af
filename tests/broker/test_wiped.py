"""Somebody removes the data directory, or a part of it, under a running broker."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from semel.wire.apis import APIS, ApiKey
from semel.wire.messages.admin import CreateTopicsRequest, DeleteTopicsRequest, DescribeLogDirsRequest
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.transactions import InitProducerIdRequest
from tests.broker.raw import Raw, batch
from tests.broker.test_topics import delete_records, list_offset
from tests.broker.test_transactions import Transactional
from tests.support.waiting import until

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
#: All but those that get no answer wherever they are sent empty: acks=0, a SASL exchange, a filter of no kind.
ANSWERED = sorted(set(APIS) - {ApiKey.PRODUCE, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.DESCRIBE_ACLS})


def all_of_it(path: Path) -> None:
    shutil.rmtree(path)


def what_a_star_names(path: Path) -> None:
    for one in path.glob("[!.]*"):
        shutil.rmtree(one) if one.is_dir() else one.unlink()


def all_of_it_and_a_new_one_made(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def filled(raw: Raw) -> None:
    raw.create("t", partitions=2)
    raw.produce("t", batch(b"kept"))
    producer = Transactional(raw, "id")
    assert producer.write("t", b"open") is ErrorCode.NONE
    assert producer.commit_offset("g", "t", 1) is ErrorCode.NONE


@pytest.mark.parametrize("wipe", [all_of_it, what_a_star_names, all_of_it_and_a_new_one_made])
def test_a_wiped_directory_is_a_storage_error_that_is_told_once(
    tmp_path: Path, wipe: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    with Broker(data) as broker, Raw(broker) as raw:
        filled(raw)
        wipe(data)
        until(lambda: raw.produce("t", batch()).error_code == STORAGE_ERROR, what="the broker to notice")
        assert raw.fetch("t", max_wait_ms=0).error_code == STORAGE_ERROR
        assert raw.produce("t", batch(), partition=1).error_code == STORAGE_ERROR
        assert list_offset(raw, "t", 0).error_code == STORAGE_ERROR
        assert delete_records(raw, "t", 1).error_code == STORAGE_ERROR
        topic = CreateTopicsRequest.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
        for _ in range(3):
            assert raw.ask(CreateTopicsRequest(topics=[topic])).topics[0].error_code == STORAGE_ERROR
            asked = MetadataRequest.MetadataRequestTopic(name="asked-for")
            assert raw.ask(MetadataRequest(topics=[asked])).topics[0].error_code != 0
        gone = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="t")])
        assert raw.ask(gone, 6).responses[0].error_code == STORAGE_ERROR
        assert raw.ask(InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=1000)).error_code != 0
    told = [record.getMessage() for record in caplog.records if "was removed or replaced" in record.getMessage()]
    assert len(told) == 1 and str(data) in told[0] and "restore the directory" in told[0]
    assert not [record for record in caplog.records if record.exc_info]
    assert not list(data.glob("[!.]*")), "nothing is written into what took its place"


@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize("api", ANSWERED, ids=lambda key: APIS[key].name)
def test_no_request_costs_its_connection_because_the_directory_is_gone(
    wiped: dict[bool, Broker], api: int, noticed: bool
) -> None:
    with Raw(wiped[noticed]) as raw:
        raw.ask(APIS[api].request())


@pytest.fixture(scope="module")
def wiped(tmp_path_factory: pytest.TempPathFactory):
    """Two brokers whose directory is gone: one that has noticed it, one that never looks."""
    paths = {noticed: tmp_path_factory.mktemp("wiped") / "data" for noticed in (True, False)}
    with Broker(paths[True]) as one, Broker(paths[False]) as other:
        brokers = {True: one, False: other}
        other.server.look_after_data = lambda: None
        for noticed, broker in brokers.items():
            with Raw(broker) as raw:
                filled(raw)
            shutil.rmtree(paths[noticed])
        until(lambda: one.server.topics.gone is not None, what="the broker to notice")
        yield brokers


def test_a_directory_that_was_not_yet_missed_is_a_storage_error_too(wiped: dict[bool, Broker]) -> None:
    with Raw(wiped[False]) as raw:
        topic = CreateTopicsRequest.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
        assert raw.ask(CreateTopicsRequest(topics=[topic])).topics[0].error_code == STORAGE_ERROR
        assert raw.ask(DescribeLogDirsRequest(topics=None)).results[0].error_code == STORAGE_ERROR
        assert delete_records(raw, "t", 1).error_code == STORAGE_ERROR
        assert raw.produce("t", batch(), partition=1).error_code in (0, STORAGE_ERROR)


def test_one_partition_that_was_removed_is_offline_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t", partitions=2)
        for partition in (0, 1):
            raw.produce("t", batch(), partition=partition)
        shutil.rmtree(tmp_path / "t-0")
        until(lambda: raw.produce("t", batch()).error_code == STORAGE_ERROR, what="the broker to notice")
        assert raw.produce("t", batch(), partition=1).error_code == 0
    told = [record.getMessage() for record in caplog.records if "t-0 was removed" in record.getMessage()]
    assert len(told) == 1
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    stays_missing(tmp_path, caplog)


def stays_missing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was written to t-0 is gone, so it does not begin anew without a word."""
    for _ in range(2):
        caplog.clear()
        with Broker(path) as broker, Raw(broker) as raw:
            assert raw.produce("t", batch()).error_code == STORAGE_ERROR
            assert raw.produce("t", batch(), partition=1).error_code == 0
        assert f"{path}/t-0 is missing: it was there when the broker last ran" in caplog.text
    told = "recovery-point-offset-checkpoint"
    assert told in caplog.text
    lines = [line for line in (path / told).read_text().splitlines()[2:] if not line.startswith("t 0 ")]
    (path / told).write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    with Broker(path) as broker, Raw(broker) as raw:
        assert raw.produce("t", batch()).base_offset == 0, "as the error says"


def test_a_partition_that_was_removed_just_before_a_stop_is_missed_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        broker.server.look_after_data = lambda: None
        broker.server.topics.give_up_if_removed = lambda partition: None
        raw.create("t", partitions=2)
        for partition in (0, 1):
            raw.produce("t", batch(), partition=partition)
        shutil.rmtree(tmp_path / "t-0")
    stays_missing(tmp_path, caplog)


def test_producer_ids_are_not_given_out_again_when_their_file_is_removed(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        first = raw.ask(InitProducerIdRequest(transactional_id=None))
        (tmp_path / ".metadata" / "latest_producer_id_block").unlink()
        given = {first.producer_id}
        for _ in range(1100):
            answer = raw.ask(InitProducerIdRequest(transactional_id=None))
            if answer.error_code:
                break
            assert answer.producer_id not in given
            given.add(answer.producer_id)
        assert answer.error_code == STORAGE_ERROR
