"""What a disk, a log or a request at the edge does to the broker around it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from semel.log.files import Files
from semel.wire.messages.admin import CreatePartitionsRequest, CreateTopicsRequest, DescribeLogDirsRequest
from tests.broker.raw import Raw, batch, fetch_request, produce_request, values_of
from tests.broker.test_topics import delete_records, list_offset
from tests.support.waiting import until


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "no space left on device")


def test_records_nobody_wants_an_answer_for_are_seen_all_the_same(tmp_path: Path) -> None:
    """With fsync, what is not on disk is not shown: somebody has to put it there, also for acks=0"""
    with Broker(tmp_path, settings={"semel.durability": "fsync"}) as broker, Raw(broker) as raw:
        raw.create("t")
        raw.send(produce_request("t", batch(b"unanswered"), acks=0), version=12)
        until(lambda: raw.values("t") == [b"unanswered"], what="the record to be shown")


def test_a_damaged_partition_does_not_hide_the_sizes_of_the_others(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t", partitions=2)
        for _ in range(6):
            raw.produce("t", batch(), partition=_ % 2)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    path = tmp_path / "t-0" / "00000000000000000000.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:70] + b"\xff" + whole[71:])
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        (result,) = raw.ask(DescribeLogDirsRequest(topics=None)).results
        (topic,) = result.topics
        assert [row.partition_size for row in topic.partitions] == [len(whole), len(whole)]


def test_a_start_of_the_log_that_cannot_be_written_down_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t")
        raw.produce("t", batch())
        with monkeypatch.context() as changed:
            changed.setattr(Files, "rename", full_disk)
            assert delete_records(raw, "t", -1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert list_offset(raw, "t", -2).offset == 0
        assert delete_records(raw, "t", -1).low_watermark == 1


def test_a_disk_that_fails_while_stopping_ends_the_stop_and_the_next_start_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t", partitions=2)
        for partition in (0, 1):
            raw.produce("t", batch(b"kept"), partition=partition)
        monkeypatch.setattr(Files, "sync", full_disk)
    monkeypatch.undo()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        assert [raw.values("t", partition=partition) for partition in (0, 1)] == [[b"kept"]] * 2


def test_a_flush_that_cannot_even_begin_is_a_storage_error_and_the_partition_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(tmp_path, settings={"semel.durability": "fsync"}) as broker, Raw(broker) as raw:
        raw.create("t", partitions=2)
        with monkeypatch.context() as changed:
            changed.setattr(Files, "duplicate", full_disk)
            assert raw.produce("t", batch()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert raw.produce("t", batch()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert raw.produce("t", batch(), partition=1).error_code == ErrorCode.NONE


def test_partitions_are_made_by_the_thousand_and_not_by_the_billion(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=2**31 - 1, replication_factor=1)
        assert raw.ask(CreateTopicsRequest(topics=[topic])).topics[0].error_code == ErrorCode.POLICY_VIOLATION
        topics = [
            CreateTopicsRequest.CreatableTopic(name=name, num_partitions=6_000, replication_factor=1) for name in "uv"
        ]
        answers = raw.ask(CreateTopicsRequest(topics=topics)).topics
        assert [answer.error_code for answer in answers] == [ErrorCode.POLICY_VIOLATION] * 2
        raw.create("t")
        row = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2**31 - 1, assignments=None)
        answer = raw.ask(CreatePartitionsRequest(topics=[row], timeout_ms=1000)).results[0]
        assert answer.error_code == ErrorCode.POLICY_VIOLATION
        assert len(broker.server.topics.get("t").partitions) == 1


def test_an_offset_comes_with_the_leader_epoch_of_its_record(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t")
        base = 1_700_000_000_000
        for epoch in (0, 3):
            broker.call(_begin(broker, epoch))
            raw.produce("t", batch(timestamp_ms=base + epoch))
        asked = {timestamp: list_offset(raw, "t", timestamp).leader_epoch for timestamp in (-1, -2, -3, base)}
        assert asked == {-1: 3, -2: 0, -3: 3, base: 0}


async def _begin(broker: Broker, epoch: int) -> None:
    broker.server.topics.partition("t", 0).log.begin_leader_epoch(epoch)


@pytest.mark.parametrize(("version", "code"), [(6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, ErrorCode.NONE)])
def test_zstd_is_for_those_who_know_it(tmp_path: Path, version: int, code: ErrorCode) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t")
        assert raw.produce("t", batch(codec=4), version=version).error_code == code


def test_a_file_that_cannot_be_read_is_its_partitions_trouble_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t", partitions=2)
        for partition in (0, 1):
            raw.produce("t", batch(b"kept"), partition=partition)
        bad = broker.server.topics.partition("t", 0).log.segments[0].descriptor
        whole = Files.read_at

        def read_at(files: Files, descriptor: int, size: int, position: int) -> bytes:
            if descriptor == bad:
                raise OSError(errno.EIO, "input/output error")
            return whole(files, descriptor, size, position)

        with monkeypatch.context() as changed:
            changed.setattr(Files, "read_at", read_at)
            asked = fetch_request({("t", 0): 0, ("t", 1): 0}, max_wait_ms=0)
            rows = raw.ask(asked, 12).responses[0].partitions
            assert [row.error_code for row in rows] == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
            assert values_of(rows[1]) == [b"kept"]
            assert list_offset(raw, "t", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert raw.values("t") == [b"kept"]


def test_a_stopped_broker_has_given_back_every_descriptor(tmp_path: Path) -> None:
    """Files, sockets, pipes: one left behind by each stop would end a long run of embedded brokers."""

    def run(number: int) -> None:
        with Broker(tmp_path / str(number)) as broker, Raw(broker) as raw:
            raw.create("t", partitions=3)
            for partition in range(3):
                raw.produce("t", batch(), partition=partition)
                raw.values("t", partition=partition)

    run(0)  # what is opened once for the whole process is open now
    open_before = len(os.listdir("/proc/self/fd"))
    for number in range(1, 4):
        run(number)
    # A client that an earlier test left behind may try to connect just now.
    until(lambda: len(os.listdir("/proc/self/fd")) <= open_before, what="the descriptors to be closed")
