"""The blocking consumer: `AsyncConsumer` on a loop thread."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from semel.client.argument_lists import as_callback, as_timeout_s
from semel.client.blocking.blocking_client import BlockingClient
from semel.client.consumer.consumer import AsyncConsumer
from semel.client.consumer.fetcher import ConsumerRecord
from semel.client.group.member import Callback
from semel.client.offset_arguments import Offsets, PartitionLike
from semel.client.offset_requests import OffsetAndTimestamp
from semel.config import Values
from semel.errors import KafkaError
from semel.machines.transactions.producer import GroupMetadata, OffsetAndMetadata
from semel.machines.values import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class Consumer(BlockingClient):
    """Reads records in order, and hides what was not committed.

    >>> import semel
    >>> with semel.Producer({"bootstrap.servers": broker}) as producer:
    ...     _ = producer.send("letters", "alpha").result()
    >>> with Consumer({"bootstrap.servers": broker, "auto.offset.reset": "earliest"}) as consumer:
    ...     consumer.assign([("letters", 0)])
    ...     [record.value for record in consumer.poll(timeout_ms=10_000)]
    [b'alpha']

    By default a consumer reads committed records only (`isolation.level`). Only one thread at a time may use it.

    With a `group.id` and enable.auto.commit (the default) offsets are committed automatically. Calling `poll` again, or
    asking an iteration for the next record, says that the records before are done; so do `commit()` and `close()`.
    After an exception the records handed out last are not committed, and are read again:

    >>> with Consumer({"bootstrap.servers": broker, "auto.offset.reset": "earliest", "group.id": "docs"}) as consumer:
    ...     consumer.subscribe("letters")
    ...     for record in consumer:
    ...         print(record.value)
    ...         break
    b'alpha'

    An argument of the wrong type raises TypeError, everything else that goes wrong a `semel.errors.KafkaError`.
    """

    def __init__(self, config: Values | Mapping[str, object]) -> None:
        super().__init__("semel-consumer")
        self._consumer = self._make(lambda: AsyncConsumer(config))

    def __iter__(self) -> Records:
        """Records one by one, without an end. Asking for the next record says that the last one is done."""
        return Records(self)

    def _records_are_lost(self) -> None:
        """A poll has taken records, and its caller was interrupted: they are read again."""
        self._consumer.undelivered = True

    def assign(self, partitions: Iterable[PartitionLike]) -> None:
        """Read these partitions, without a group. A partition may be given as a pair of topic and number."""
        self._call(self._consumer.assign, partitions)

    def subscribe(
        self,
        topics: Iterable[str] | str | re.Pattern[str],
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Share these topics with the other members of group.id.

        The callbacks get a list of partitions, in another thread than the caller's; `on_revoked` can still commit.
        """
        named = {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost}
        threaded = [_in_a_thread(as_callback(callback, name)) for name, callback in named.items()]
        self._thread.run(self._consumer.subscribe(topics, *threaded))

    def unsubscribe(self) -> None:
        """Leave the group, or drop the assigned partitions. As for `close`, the records handed out count as done."""
        self._thread.run(self._consumer.unsubscribe())

    def assignment(self) -> set[TopicPartition]:
        """The partitions that this consumer reads now."""
        return self._call(self._consumer.assignment)

    def subscription(self) -> set[str]:
        """The topics that this consumer shares with its group."""
        return self._call(self._consumer.subscription)

    def group_metadata(self) -> GroupMetadata:
        """Who commits, for `producer.send_offsets_to_transaction`: a stale member is refused (KIP-447)."""
        return self._call(self._consumer.group_metadata)

    def poll(self, timeout_ms: float = 1_000, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return records as soon as there are any, or an empty list after `timeout_ms`."""
        return self._heard(lambda: self._consumer.poll(timeout_ms, max_records), self._records_are_lost)

    def poll_arrow(self, timeout_ms: float = 1_000, max_bytes: int | None = None) -> pa.Table:
        """Return records as Arrow columns. No Python object is created for any record."""
        return self._heard(lambda: self._consumer.poll_arrow(timeout_ms, max_bytes), self._records_are_lost)

    def position(self, partition: PartitionLike) -> int:
        """The offset of the next record to be read."""
        return self._thread.run(self._consumer.position(partition))

    def seek(self, partition: PartitionLike, offset: int | OffsetAndMetadata) -> None:
        """Continue reading at this offset."""
        self._call(self._consumer.seek, partition, offset)

    def seek_to_beginning(self, partitions: Iterable[PartitionLike] | None = None) -> None:
        """Read from the first record that exists; without arguments, in all assigned partitions."""
        self._call(self._consumer.seek_to_beginning, partitions)

    def seek_to_end(self, partitions: Iterable[PartitionLike] | None = None) -> None:
        """Read only new records; without arguments, in all assigned partitions."""
        self._call(self._consumer.seek_to_end, partitions)

    def rewind(self) -> None:
        """Go back to the group's committed offsets: records read since then are read again."""
        self._call(self._consumer.rewind)

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What `commit` would commit: for each partition, the offset after the records that were handed out."""
        return self._call(self._consumer.consumed)

    def pause(self, partitions: Iterable[PartitionLike]) -> None:
        """Return no records of these partitions until `resume`. They stay assigned."""
        self._call(self._consumer.pause, partitions)

    def resume(self, partitions: Iterable[PartitionLike]) -> None:
        """Return records of these partitions again."""
        self._call(self._consumer.resume, partitions)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return self._call(self._consumer.paused)

    def lag(self, partition: PartitionLike) -> int | None:
        """Offsets between the position and the end of what can be read, as of the last fetch; None before the first."""
        return self._call(self._consumer.lag, partition)

    def beginning_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return self._thread.run(self._consumer.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The end of each partition: under read_committed, the last stable offset."""
        return self._thread.run(self._consumer.end_offsets(partitions))

    def offsets_for_times(
        self, timestamps: Mapping[PartitionLike, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition at or after a time in milliseconds; None where there is none."""
        return self._thread.run(self._consumer.offsets_for_times(timestamps))

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic."""
        return self._thread.run(self._consumer.partitions_for(topic))

    def commit(self, offsets: Offsets | None = None) -> None:
        """Commit these offsets of the group; without arguments, those after the records that were handed out.

        Handed out are all records that `poll` has returned, and those of an iteration up to the current one. Raises
        `CommitFailed` if the group has moved on; it may have given this member's partitions away.
        """
        self._thread.run(self._consumer.commit(offsets))

    def commit_soon(
        self,
        offsets: Offsets | None = None,
        on_done: Callable[[KafkaError | None], object] | None = None,
    ) -> None:
        """As `commit`, without waiting. `on_done` gets the error, or None; without `on_done` an error is logged."""
        self._call(self._consumer.commit_soon, offsets, on_done)

    def committed(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets; partitions without one are left out. Waits for open transactions."""
        return self._thread.run(self._consumer.committed(partitions))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(self._consumer.close_after(30_000, in_order=kind is None))

    def close(self, timeout_ms: float = 30_000) -> None:
        """Commit if enable.auto.commit is set, leave the group, and close the connections.

        All records that were handed out are committed. While an exception is being handled (in a `finally`, an
        `except`, or at the end of a `with`) the last ones count as not done: they are not committed, and are read
        again. Leaving the group takes `timeout_ms` at most; otherwise the group waits for session.timeout.ms.
        """
        as_timeout_s(timeout_ms)
        self._close(self._consumer.close_after(timeout_ms, in_order=sys.exc_info()[0] is None))


class Records(Iterator[ConsumerRecord]):
    """An iteration over a consumer's records. An error does not end it: the next call continues."""

    def __init__(self, consumer: Consumer) -> None:
        self._of = consumer

    def __next__(self) -> ConsumerRecord:
        reader = self._of._consumer
        while (record := reader.next_record()) is None:
            self._of._heard(reader.look_ahead)  # it takes nothing, so nothing can be lost
        return record


def _in_a_thread(callback: Callback | None) -> Callback | None:
    """Callbacks may call the blocking consumer, so they must not run on its loop."""
    return None if callback is None else lambda partitions: asyncio.to_thread(callback, partitions)
