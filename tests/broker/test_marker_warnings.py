"""What the log says while markers cannot be written."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from semel.broker.coordinators import marker_sender
from semel.broker.server import BrokerServer
from semel.errors import ErrorCode
from semel.machines.values import TopicPartition
from tests.broker.raw import Raw
from tests.broker.test_transactions import Transactional, committed, running
from tests.support.waiting import until


def test_a_full_disk_makes_one_warning_for_a_partition_and_not_one_for_each_try(
    tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write, tries, is_full = marker_sender.write_marker, [0], [True]

    def on_a_full_disk(broker: BrokerServer, target: TopicPartition, *rest: Any) -> None:
        tries[0] += 1
        if is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(broker, target, *rest)

    monkeypatch.setattr(marker_sender, "write_marker", on_a_full_disk)
    monkeypatch.setattr(marker_sender, "RETRY_MS", 1)
    with running(tmp_path) as broker, Raw(broker) as raw:
        raw.create(topic)
        for name in "abc":
            producer = Transactional(raw, f"{topic}-{name}")
            assert producer.write(topic, name.encode()) is ErrorCode.NONE
            assert producer.end(commit=True) is ErrorCode.NONE
        until(lambda: tries[0] > 50, what="many tries")
        warned = [record.getMessage() for record in caplog.records if "marker" in record.getMessage()]
        assert len(warned) == 1 and warned[0].endswith("No space left on device; trying again")
        is_full[0] = False
        until(lambda: sorted(committed(raw, topic)) == [b"a", b"b", b"c"], what="the markers")
