"""Apache Kafka's own dump tool reads what we write and finds nothing wrong, after a clean stop and after a crash."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from semel.records.batch import build
from tests.log.disk import NOW, batch, crash, end, open_log, send
from tests.support.dump_log import complaints, dump, files_of

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("kafka_jars")]

SMALL = {"segment_bytes": 20_000, "index_interval_bytes": 500, "cleanup_policy": "compact,delete"}


def fill(data: Path) -> None:
    """Two partitions: one stopped in order, one killed in the middle of a write and recovered."""
    for partition in (0, 1):
        log = open_log(data, partition=partition, **SMALL)
        sequence = 0
        for number in range(60):
            values = [b"v%d" % i * 20 for i in range(number % 4 + 1)]
            keys = [b"k%d" % (number % 7)] * len(values)
            at_ms = NOW + number * 7 % 13
            log.append(batch(1, sequence, *values, keys=keys, codec=number % 5, timestamp_ms=at_ms), NOW + number)
            sequence += len(values)
            send(log, 7, number, b"t" * 100)
            end(log, 7, commit=number % 3 > 0)
        if partition == 0:
            log.cleaner.compact(NOW)
            log.close(NOW)
            continue
        send(log, 8, 0, b"open")
        log.append(build([(b"k", b"plain")], timestamp_ms=NOW), NOW)
        crash(log)
        newest = sorted((data / "t-1").glob("*.log"))[-1]
        newest.write_bytes(newest.read_bytes()[:-7])
        recovered = open_log(data, partition=partition, clean=False, **SMALL)
        recovered.append(batch(1, sequence), NOW)
        recovered.flusher.flush()
        crash(recovered)


def test_kafkas_dump_tool_finds_nothing_wrong(tmp_path: Path) -> None:
    fill(tmp_path)
    assert complaints(tmp_path, gaps=False) == []
    shutil.rmtree(tmp_path / "t-0")
    assert complaints(tmp_path) == []


def test_kafkas_dump_tool_sees_what_we_meant(tmp_path: Path) -> None:
    fill(tmp_path)
    said = dump(files_of(tmp_path), "--deep-iteration", "--print-data-log")
    assert "producerId: 8 producerEpoch: 0" in said
    assert "endTxnMarker: ABORT" in said and "endTxnMarker: COMMIT" in said
    assert "version: 0 producerId: 7 firstOffset:" in said
    assert "payload: v0" in said
