"""Takes down what clients do and see while they do it, and has the judge of histories look at all of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from semel import Consumer, TransactSession
from semel.client.consumer.fetcher import ConsumerRecord
from semel.machines.values import TopicPartition
from semel.testing.history import Ended, Ending, Operation, Outcome, Poll, Reached, Seen, Send, judge


class Witness:
    """The history of one test, of any number of threads: one list, and adding to it is atomic."""

    def __init__(self) -> None:
        self.history: list[Operation] = []
        self._transactions = 0

    # Reading

    def polled(self, process: str, consumer: Consumer, timeout_ms: float = 200) -> list[ConsumerRecord]:
        """Poll, and note what came and where the reader stands afterwards."""
        records = consumer.poll(timeout_ms=timeout_ms)
        seen = (Seen(one.topic, one.partition, one.offset, one.value) for one in records)
        self.history.append(Poll(process, tuple(seen)))
        self.stands(process, consumer)
        return records

    def stands(self, process: str, consumer: Consumer) -> None:
        """Note where the reader stands."""
        places = (((one.topic, one.partition), consumer.position(one)) for one in consumer.assignment())
        self.history.append(Reached(process, tuple(places)))

    def read_to_the_end(self, bootstrap: str, topic: str, partitions: int = 1) -> list[list[bytes]]:
        """What a reader of committed records finds, by partition, up to where it may read."""
        with self.reading(bootstrap, topic, partitions) as found:
            pass
        return found

    @contextmanager
    def reading(self, bootstrap: str, topic: str, partitions: int = 1) -> Iterator[list[list[bytes]]]:
        """A reader of committed records beside the block, which in the end reads up to the last stable offsets.

        Its values by partition are there when the block is over.
        """
        found: list[list[bytes]] = [[] for _ in range(partitions)]
        wanted = [TopicPartition(topic, number) for number in range(partitions)]
        over = threading.Event()
        failures: list[BaseException] = []

        def read() -> None:
            config = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "retry.backoff.ms": 20}
            try:
                with Consumer(config) as consumer:
                    consumer.assign(wanted)
                    consumer.seek_to_beginning()
                    self.stands(topic, consumer)
                    while not over.is_set() or not self._at_the_end(consumer, wanted):
                        for record in self.polled(topic, consumer):
                            found[record.partition].append(bytes(record.value or b""))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=read, name=f"reader of {topic}", daemon=True)
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join(60)
        assert not thread.is_alive(), "the reader came to an end"
        assert not failures, failures

    @staticmethod
    def _at_the_end(consumer: Consumer, wanted: list[TopicPartition]) -> bool:
        return all(consumer.position(partition) >= end for partition, end in consumer.end_offsets(wanted).items())

    # Writing

    def copied(self, copier: TransactSession, target: str, during: Callable[[], object] = lambda: None) -> int:
        """One transaction of a session: its records to the same partitions of the output; how many, for good.

        Each copy says of which attempt it is, so that no two are alike: `originals` takes that off again. `during` is
        called before the end of the transaction.
        """
        self._transactions += 1
        transaction, aborted = (target, self._transactions), copier.aborted
        with copier.transaction(timeout_ms=200) as records:
            for record in records:
                value = b"%s in attempt %d" % (record.value, self._transactions)
                self.history.append(Send("copier", target, record.partition, value, transaction=transaction))
                copier.send(target, value, partition=record.partition)
            during()
            self.history.append(Ending("copier", transaction))
        outcome = Outcome.OK if copier.aborted == aborted else Outcome.FAILED
        self.history.append(Ended("copier", transaction, outcome))
        return len(records) if outcome is Outcome.OK else 0

    def sent(
        self, topic: str, value: bytes, offset: int | None = None, *, partition: int = 0, transaction: object = None
    ) -> None:
        """A record that was acknowledged, or was if its transaction commits."""
        self.history.append(Send("producer", topic, partition, value, offset, transaction=transaction))

    # Judging

    def assert_lawful(self) -> None:
        found = judge(self.history, at_rest=True)
        assert not found, "\n".join(map(str, found[:20]))


def originals(copies: list[list[bytes]]) -> list[list[int]]:
    """The numbers that were copied, by partition."""
    return [[int(value.split()[0]) for value in partition] for partition in copies]
