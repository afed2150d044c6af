"""A coordinator that loads its partition takes in all of the log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from semel.broker.coordinators.host import CoordinatorHost
from semel.records.batch import Batch
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
