"""A coordinator that loads its partition takes in all of the log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from semel.broker.coordinators.host import CoordinatorHost
from semel.errors import ErrorCode, Refused
from semel.machines.groups.coordinator import GroupCoordinator, GroupSettings
from semel.records.batch import Batch
from semel.wire.messages.offsets import OffsetFetchRequest
from tests.log.disk import NOW, end, open_log, send


def test_what_is_not_committed_yet_is_taken_in_too(tmp_path: Path) -> None:
    """C5: markers reach the leader of a partition of `__consumer_offsets` before it is loaded. If it did not read them
    then, committed offsets of their transactions would be lost to the group."""
    log = open_log(tmp_path, is_replicated=True)
    send(log, 1, 0, b"an offset of a group")
    log.advance_high_watermark(log.end_offset)
    end(log, 1, commit=True)
    assert log.high_watermark < log.end_offset
    taken: list[int] = []

    def take(_: int, batch: Batch) -> None:
        taken.append(batch.base_offset)

    partition = SimpleNamespace(log=log, index=0)
    CoordinatorHost._replay_log(cast(Any, SimpleNamespace(_replay_batch=take)), cast(Any, partition))
    assert taken == [0, 1]
    log.close(NOW)


def test_a_leader_whose_files_are_gone_serves_nobody() -> None:
    """Otherwise every group in the partition would be told that it has no offsets, and read everything again."""

    class Partition:
        index, has_files, open_log = 0, False, None

        @property
        def log(self) -> Any:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, "the directory is gone")

    coordinators = SimpleNamespace(may_load=lambda topic, index: True, epoch_of=lambda partition: 5)
    topic = SimpleNamespace(partition=lambda index: Partition())
    broker = SimpleNamespace(
        cluster=SimpleNamespace(coordinators=coordinators),
        internal_topics=SimpleNamespace(get=lambda name: topic),
        loop=SimpleNamespace(call_later=lambda *_: None),
        now_ms=lambda: 0,
    )
    coordinator = GroupCoordinator(GroupSettings(offsets_topic_num_partitions=1))
    host = CoordinatorHost(cast(Any, broker), "__consumer_offsets", coordinator, {})
    assert not host.ready(0)
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)]
    reply = coordinator.offset_fetch(OffsetFetchRequest(groups=groups), 9, 0).reply
    assert reply.groups[0].error_code == ErrorCode.NOT_COORDINATOR
