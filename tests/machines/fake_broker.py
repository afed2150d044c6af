"""A broker for the real `CoordinatorHost` in tests: a log in memory, and a clock and timers that are set by hand.

The log holds records, in one list for all partitions. What the host appends is parsed from the batch it built, and what
it reads while loading is built into batches again, so that the tests go through the same bytes as the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from semel.broker.durability import OsDurability
from semel.broker.server import BrokerServer
from semel.errors import ErrorCode, Refused
from semel.machines.contract import StateRecord
from semel.machines.values import ProducerIdentity
from semel.records.batch import Batch, read_records
from semel.records.building import build
from semel.records.markers import control_batch


@dataclass(frozen=True)
class LogMarker:
    """The end of a transaction in one partition of the log."""

    partition: int
    producer_id: int
    commit: bool


LogEntry = StateRecord | LogMarker


@dataclass
class FakeTimer:
    at_ms: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class FakeLoop:
    """Timers that fire when the test says so."""

    broker: FakeBroker
    timers: list[FakeTimer] = field(default_factory=list)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self.broker.clock_ms + round(delay_s * 1000), call)
        self.timers.append(timer)
        return timer

    def next_at_ms(self) -> float | None:
        self.timers = [timer for timer in self.timers if not timer.cancelled]
        return min((timer.at_ms for timer in self.timers), default=None)

    def run_due(self) -> None:
        """Fire the timers that are due at the broker's time, and those that they set for now."""
        for _ in range(10_000):
            at_ms = self.next_at_ms()
            if at_ms is None or at_ms > self.broker.clock_ms:
                return
            timer = min(self.timers, key=lambda each: each.at_ms)
            self.timers.remove(timer)
            timer.call()
        raise AssertionError("the coordinator never rests")


@dataclass
class FakePartition:
    """One partition of the internal topic: its part of the broker's log."""

    broker: FakeBroker
    index: int
    directory: Path = Path("/nowhere")
    open_log: Any = None
    log_start_offset: int = 0

    @property
    def log(self) -> FakePartition:
        return self

    @property
    def reader(self) -> FakePartition:
        return self

    @property
    def entries(self) -> list[LogEntry]:
        return [entry for entry in self.broker.log if entry.partition == self.index]

    @property
    def end_offset(self) -> int:
        return len(self.entries)

    def read(self, offset: int, *_: object) -> Any:
        batches = bytearray()
        for place, entry in enumerate(self.entries[offset:], offset):
            if isinstance(entry, LogMarker):
                batches += control_batch(entry.producer_id, 0, entry.commit, 0, 0, place, 0)
            else:
                producer_id, epoch = entry.producer or (-1, -1)
                batches += build(
                    [(entry.key, entry.value)],
                    timestamp_ms=0,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    transactional=entry.producer is not None,
                    base_offset=place,
                )
        return SimpleNamespace(data=memoryview(batches))

    def append_internal(self, data: bytes | bytearray, now_ms: int) -> None:
        if self.broker.append_fails or self.broker.fail_next:
            self.broker.fail_next = False
            self.broker.failures += 1
            raise Refused(ErrorCode.NOT_ENOUGH_REPLICAS, "the test wants this append to fail")
        batch = Batch.parse(data)
        producer = ProducerIdentity(batch.producer_id, batch.producer_epoch) if batch.is_transactional else None
        for record in read_records(batch):
            value = None if record.value is None else bytes(record.value)
            self.broker.log.append(StateRecord(self.index, bytes(record.key or b""), value, producer))


class FakeBroker:
    """What a `CoordinatorHost` uses of a broker."""

    def __init__(self, now_ms: int) -> None:
        self.clock_ms = now_ms
        self.log: list[LogEntry] = []
        #: Whether appends fail: all, or only the next one.
        self.append_fails = False
        self.fail_next = False
        self.failures = 0
        self.leader_epoch = 0
        self.loop = FakeLoop(self)
        self.fatal_error = None
        self.cluster = None
        self.topics = SimpleNamespace(topics={}, gone=None)
        self.internal_topics = SimpleNamespace(get=self._internal_topic)
        self.durability = OsDurability(cast(Any, None), cast(Any, SimpleNamespace(add=lambda step: step())))

    def now_ms(self) -> int:
        return self.clock_ms

    def _internal_topic(self, _: str) -> Any:
        return SimpleNamespace(partition=lambda index: FakePartition(self, index, open_log=True))

    def as_broker(self) -> BrokerServer:
        return cast(BrokerServer, self)
