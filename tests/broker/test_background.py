"""What the broker does on its own."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from semel.broker.embedded import Broker
from semel.log.compaction import Cleaner, Compaction
from semel.records.batch import build
from tests.broker.raw import Raw, batch, now_ms, stored_batches, values_of
from tests.support.waiting import until


def test_old_segments_go_by_themselves(tmp_path: Path) -> None:
    with Broker(tmp_path, settings={"log.retention.check.interval.ms": 50}) as broker, Raw(broker) as raw:
        raw.create("t", retention_ms="60000", segment_bytes="500", file_delete_delay_ms="0")
        for _ in range(5):
            raw.produce("t", batch(b"old" * 100, timestamp_ms=now_ms() - 3_600_000))
        raw.produce("t", batch(b"new" * 100))
        log = broker.server.topics.partition("t", 0).log
        until(lambda: log.log_start_offset == 5, what="the old segments to go")
        assert raw.values("t", offset=5) == [b"new" * 100]


def test_a_compacted_topic_keeps_the_last_record_of_each_key(tmp_path: Path) -> None:
    settings = {"log.cleaner.backoff.ms": 50, "log.cleaner.min.cleanable.ratio": 0.01}
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as raw:
        raw.create("t", cleanup_policy="compact", segment_bytes="1000")
        for number, key in itertools.product(range(20), (b"a", b"b")):
            raw.produce("t", batch(b"%d" % number * 50, key=key))
        log = broker.server.topics.partition("t", 0).log
        until(lambda: log.size_bytes < 4000, what="compaction")
        kept: list[bytes | None] = []
        offset = 0
        while offset < 40:
            data = raw.fetch("t", offset)
            kept += values_of(data)
            offset = stored_batches(data)[-1].next_offset
        assert kept[-2:] == [b"19" * 50, b"19" * 50]
        assert len(kept) < 30


def test_compaction_has_the_memory_it_is_given_and_goes_on_until_it_is_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, plan = [], Cleaner.plan

    def spy(self: Cleaner, now_ms: int, *, dedupe_buffer_bytes: int) -> Compaction | None:
        planned = plan(self, now_ms, dedupe_buffer_bytes=dedupe_buffer_bytes)
        if planned is not None:
            given.append(dedupe_buffer_bytes)
        return planned

    monkeypatch.setattr(Cleaner, "plan", spy)
    settings = {"log.cleaner.backoff.ms": 50, "log.cleaner.dedupe.buffer.size": 1_048_576}
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as raw:
        raw.create("t", cleanup_policy="compact", segment_bytes="400000", min_cleanable_dirty_ratio="0.01")
        for turn in range(2):
            for first in range(0, 6000, 1000):
                records = [(b"key %d" % key, b"%d" % turn) for key in range(first, first + 1000)]
                raw.produce("t", build(records, timestamp_ms=now_ms()))
        log = broker.server.topics.partition("t", 0).log
        broker.server.loop.call_soon_threadsafe(log.roll, now_ms())
        until(lambda: len(given) >= 2 and log.size_bytes < 150_000, what="compaction in several rounds")
    assert set(given) == {1_048_576}


def test_idle_producers_are_forgotten(tmp_path: Path) -> None:
    settings = {"producer.id.expiration.ms": 100, "producer.id.expiration.check.interval.ms": 50}
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as raw:
        raw.create("t")
        raw.produce("t", batch(b"x", producer_id=9, producer_epoch=0, base_sequence=0))
        producers = broker.server.topics.partition("t", 0).log.producers
        until(lambda: 9 not in producers.entries, what="the producer to be forgotten")


def test_recovery_points_are_written_down(tmp_path: Path) -> None:
    settings = {"log.flush.offset.checkpoint.interval.ms": 50}
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as raw:
        raw.create("t", segment_bytes="500")
        for _ in range(5):
            raw.produce("t", batch(b"x" * 300))
        path = tmp_path / "recovery-point-offset-checkpoint"
        until(lambda: path.exists() and "t 0 4" in path.read_text(), what="the recovery point")


def test_flush_messages_and_flush_ms_force_an_fsync(tmp_path: Path) -> None:
    settings = {"log.flush.scheduler.interval.ms": 20}
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as raw:
        raw.create("by-count", flush_messages="3")
        raw.create("by-time", flush_ms="50")
        raw.create("never")
        for name in ("by-count", "by-time", "never"):
            for _ in range(4):
                raw.produce(name, batch())
        logs = {name: broker.server.topics.partition(name, 0).log for name in ("by-count", "by-time", "never")}
        assert logs["by-count"].flusher.recovery_point == 3
        until(lambda: logs["by-time"].flusher.recovery_point == 4, what="flush.ms")
        assert logs["never"].flusher.recovery_point == 0
