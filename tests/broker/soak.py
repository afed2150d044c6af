"""Clients nobody here wrote, at work while their broker is killed again and again, and the history of what they saw.

Writers commit and abort at random. Copiers read what was committed and write it on together with their offsets, in one
transaction. A reader watches all the while. Each of them goes on through whatever happens, the way librdkafka's
documentation says: what may be repeated is repeated, what must be aborted is aborted, and after a fatal error the
client is made anew, as a process would be that was started again.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from semel.testing.history import Ended, Ending, Operation, Outcome, Poll, Seen, Send

#: How long a client tries a call again that may be repeated, before it counts as stalled.
PATIENCE_S = 120.0
CALL_S = 10.0
#: Where a leader has just moved, librdkafka's abort waits for what it would send again as long as it may (its issue
#: 3779). The next call throws that away, and ends at once.
ABORT_S = 3.0


class Stalled(AssertionError):
    """A client could not get on although the broker was there."""


@dataclass
class Record:
    """What everybody did, in the order in which it happened."""

    history: list[Operation] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    fatal: list[str] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *operations: Operation) -> None:
        with self.lock:
            self.history.extend(operations)

    def met(self, who: str, what: str, error: KafkaError) -> None:
        with self.lock:
            self.errors[f"{what}: {error.name()}"] += 1
            if error.fatal():
                self.fatal.append(f"{who} at {what}: {error.name()} ({error.str()})")


def _client(bootstrap_servers: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap_servers,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        "retry.backoff.ms": 20,
        "log_level": 0,
        **more,
    }


def read_committed(bootstrap_servers: str, group: str, **more: Any) -> dict[str, Any]:
    return _client(
        bootstrap_servers,
        **{
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            **more,
        },
    )


class Worker:
    """One thread with one transactional id."""

    #: What its producer needs besides.
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, name: str, bootstrap_servers: str, record: Record, seed: int) -> None:
        self.name = name
        self.bootstrap_servers = bootstrap_servers
        self.record = record
        self.chance = random.Random(seed)
        self.producer: Producer | None = None
        #: Transactions whose outcome is known, committed and aborted.
        self.committed = self.aborted = 0
        self.number = 0
        #: What it is doing, for whoever wonders why it takes so long.
        self.doing = "nothing yet"
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def ended(self) -> int:
        return self.committed + self.aborted

    def _run(self) -> None:
        try:
            while not self.stop.is_set():
                self.work()
            self.leave()
        except BaseException as error:
            self.record.failures.append(error)

    def work(self) -> None:
        """One transaction, or none if there is nothing to do."""
        raise NotImplementedError

    def leave(self) -> None:
        """Nothing is left open by a client that goes."""
        if self.producer is not None:
            self.producer.flush(CALL_S)

    def patiently(self, what: str, call: Callable[[], object]) -> None:
        """Repeat a call for as long as its error says that it may be repeated."""
        deadline = time.monotonic() + PATIENCE_S
        self.doing = what
        while True:
            try:
                call()
                self.doing = f"after {what}"
                return
            except KafkaException as error:
                reason = error.args[0]
                self.record.met(self.name, what, reason)
                if not reason.retriable() or reason.fatal() or reason.txn_requires_abort():
                    raise
                if time.monotonic() > deadline:
                    raise Stalled(f"{self.name}: {what} did not succeed within {PATIENCE_S:g} s: {reason}") from error

    def ready(self) -> Producer:
        """The producer, made anew if there is none; whatever its predecessor left open is aborted by that."""
        while self.producer is None:
            config = _client(
                self.bootstrap_servers,
                **{
                    "transactional.id": self.name,
                    "transaction.timeout.ms": 60_000,
                    "linger.ms": self.chance.choice([0, 2]),
                    **self.settings,
                },
            )
            made = Producer(config)
            try:
                self.patiently("init_transactions", partial(made.init_transactions, CALL_S))
            except KafkaException as error:
                if not error.args[0].fatal():
                    raise
                continue
            self.producer = made
        return self.producer

    def transact(self, transaction: str, fill: Callable[[Producer], None], commit: bool) -> bool:
        """Begin, fill, end. Whether it was committed; what is not known to be is told as unknown."""
        producer = self.ready()
        asked = False
        try:
            producer.begin_transaction()
            fill(producer)
            if commit:
                self.record.add(Ending(self.name, transaction))
                asked = True
                self.patiently("commit_transaction", lambda: producer.commit_transaction(CALL_S))
                self.record.add(Ended(self.name, transaction, Outcome.OK))
                self.committed += 1
                return True
            self.patiently("abort_transaction", lambda: producer.abort_transaction(ABORT_S))
        except KafkaException as error:
            reason = error.args[0]
            if not reason.fatal():
                # Also what begin_transaction and produce raise: they say so because the transaction has failed before.
                try:
                    self.patiently("abort after an error", lambda: producer.abort_transaction(ABORT_S))
                except KafkaException as second:
                    reason = second.args[0]
                    assert reason.fatal(), f"{self.name} can neither end its transaction nor begin anew: {reason}"
            if reason.fatal():
                self.producer = None
                # Without a request to commit it can only be aborted, by the successor's InitProducerId.
                self.ready()
                if asked:
                    self.record.add(Ended(self.name, transaction, Outcome.UNKNOWN))
                    return False
        self.record.add(Ended(self.name, transaction, Outcome.FAILED))
        self.aborted += 1
        return False

    def send(self, producer: Producer, transaction: str, topic: str, partition: int, value: bytes) -> None:
        """One record; what becomes of it is the transaction's affair."""

        def told(error: KafkaError | None, message: Message) -> None:
            known = error is None
            offset = message.offset() if known and message.offset() is not None and message.offset() >= 0 else None
            outcome = Outcome.OK if known else Outcome.UNKNOWN
            self.record.add(Send(self.name, topic, partition, value, offset, outcome, transaction))

        while True:
            try:
                producer.produce(topic, value, key=value, partition=partition, on_delivery=told)
                return
            except BufferError:
                producer.poll(0.05)


class Writer(Worker):
    """Writes a few records to partitions of several topics, and commits or aborts."""

    def __init__(
        self, name: str, bootstrap_servers: str, record: Record, seed: int, places: list[tuple[str, int]]
    ) -> None:
        super().__init__(name, bootstrap_servers, record, seed)
        self.places = places

    def work(self) -> None:
        self.number += 1
        transaction = f"{self.name}/{self.number}"
        chance = self.chance
        count = chance.randint(1, 8)

        def fill(producer: Producer) -> None:
            for place in range(count):
                topic, partition = chance.choice(self.places)
                self.send(producer, transaction, topic, partition, f"{transaction}/{place}".encode())
            match chance.randrange(3):
                case 0:
                    producer.flush(CALL_S)
                case 1:
                    producer.poll(0)

        self.transact(transaction, fill, chance.random() < 0.65)


class Copier(Worker):
    """Consume, transform, produce: each record of `source` once into `target`, with its offsets in the transaction."""

    # Otherwise librdkafka, once all brokers were down, may wait for ever in send_offsets_to_transaction, for a
    # connection to the group's coordinator that it has given up (librdkafka issue 5511).
    settings: ClassVar[dict[str, Any]] = {"metadata.recovery.strategy": "none"}
    session_timeout_ms: ClassVar[int] = 6000
    reader_settings: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        name: str,
        bootstrap_servers: str,
        record: Record,
        seed: int,
        source: str,
        target: str,
        group: str = "copiers",
    ) -> None:
        super().__init__(name, bootstrap_servers, record, seed)
        self.source, self.target, self.group = source, target, group
        self.consumer: Consumer | None = None
        #: When this copier's first offset of a partition was committed. From then on nobody in its group may go back to
        #: the beginning of that partition.
        self.first_commits: dict[tuple[str, int], float] = {}

    def reading(self) -> Consumer:
        if self.consumer is None:
            self.consumer = Consumer(
                read_committed(
                    self.bootstrap_servers,
                    self.group,
                    **{
                        "session.timeout.ms": self.session_timeout_ms,
                        "heartbeat.interval.ms": 500,
                        **self.reader_settings,
                    },
                )
            )
            self.consumer.subscribe([self.source])
        return self.consumer

    def leave(self) -> None:
        super().leave()
        if self.consumer is not None:
            self.consumer.close()

    def work(self) -> None:
        consumer = self.reading()
        self.doing = "consume"
        messages = [one for one in consumer.consume(20, 0.2) if one.error() is None]
        if not messages:
            return
        self.number += 1
        transaction = f"{self.name}/{self.number}"
        ends = {(one.topic(), one.partition()): one.offset() + 1 for one in messages}

        def fill(producer: Producer) -> None:
            for message in messages:
                value = b"%s|%s" % (message.value(), transaction.encode())
                self.send(producer, transaction, self.target, message.partition(), value)
            offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]
            self.patiently(
                "send_offsets_to_transaction",
                lambda: producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), CALL_S),
            )

        if self.transact(transaction, fill, self.chance.random() < 0.8):
            for place in ends:
                self.first_commits.setdefault(place, time.time())
        else:
            self._go_back(consumer, messages)

    def _go_back(self, consumer: Consumer, messages: list[Message]) -> None:
        """What was not committed is to be read again, by whoever has its partition then."""
        first: dict[tuple[str, int], int] = {}
        for one in messages:
            first.setdefault((one.topic(), one.partition()), one.offset())
        try:
            if self.chance.random() < 0.8:
                for (topic, partition), offset in first.items():
                    consumer.seek(TopicPartition(topic, partition, offset))
                return
        except KafkaException as error:
            self.record.met(self.name, "seek", error.args[0])
        # A consumer made anew goes on from what is committed by itself.
        consumer.close()
        self.consumer = None


class Watcher:
    """Reads everything that is committed while it is being written, from the first record to the last."""

    def __init__(
        self, bootstrap_servers: str, record: Record, places: list[tuple[str, int]], name: str = "watcher"
    ) -> None:
        self.name = name
        self.record = record
        self.count = 0
        self.consumer = Consumer(read_committed(bootstrap_servers, name, **{"enable.partition.eof": True}))
        self.consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in places])
        self.ends: set[tuple[str, int]] = set()
        self.values: dict[str, list[bytes]] = {}

    def poll(self, timeout_s: float) -> None:
        seen = []
        for message in self.consumer.consume(1000, timeout_s):
            error = message.error()
            place = (message.topic(), message.partition())
            if error is None:
                self.ends.discard(place)
                seen.append(Seen(*place, message.offset(), message.value()))
                self.values.setdefault(message.topic(), []).append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                self.ends.add(place)
            elif not error.retriable() and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                raise AssertionError(f"{self.name} cannot read {place}: {error}")
        if seen:
            self.count += len(seen)
            self.record.add(Poll(self.name, tuple(seen)))

    def close(self) -> None:
        self.consumer.close()
