"""Sends Arrow tables: encodes them into batches and hands these to the accumulator, without an object per row."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from semel.client.arguments import as_partition_number, as_topic
from semel.client.producer.arrow import check_rows, encode_by_partition
from semel.client.producer.delivery import BatchDelivery
from semel.client.producer.routing import Routing
from semel.client.producer.send_loop import SendLoop
from semel.errors import RequestTimedOut
from semel.machines.producing.accumulator import ProducerBatch
from semel.machines.values import TopicPartition

#: Batches of a table are at least this large, whatever batch.size is: all rows are there already.
_LEAST_BATCH_BYTES = 1 << 18


class ArrowSender:
    """The part of a producer that sends tables."""

    def __init__(self, sending: SendLoop, routing: Routing, clock_ms: Callable[[], int]) -> None:
        self._sending = sending
        self._routing = routing
        self._clock_ms = clock_ms

    async def send(self, topic: str, rows: pa.Table | pa.RecordBatch, partition: int | None) -> BatchDelivery:
        """Take all rows in, waiting up to max.block.ms for metadata and memory."""
        sending, accumulator = self._sending, self._sending.accumulator
        sending.check_open()
        topic = as_topic(topic)
        check_rows(rows)
        if partition is not None:
            partition = as_partition_number(partition)
        deadline = self._routing.deadline()
        info = await self._routing.topic_with(topic, partition, deadline)
        with sending.lock:
            if sending.manager is not None:
                sending.manager.check_write()
            keyless = self._routing.route_of(info).routes.route(None, accumulator.batch_size_bytes)
        most = accumulator.max_request_bytes
        encoded = encode_by_partition(
            rows,
            partition_count=len(info.partitions),
            partition=partition,
            keyless_partition=keyless,
            timestamp_ms=self._clock_ms(),
            codec=sending.codec,
            level=sending.level,
            max_batch_bytes=min(most, max(accumulator.batch_size_bytes, _LEAST_BATCH_BYTES)),
            max_row_bytes=most,
        )
        batches: list[ProducerBatch] = []
        for number, data, record_count in encoded:
            target = TopicPartition(topic, number)
            while (batch := self._append(target, data, record_count)) is None:
                try:
                    await self._routing.wait_for_room(topic, None, deadline)
                except RequestTimedOut as late:
                    taken = sum(batch.record_count for batch in batches)
                    why = f"{late.why}; {taken} of {rows.num_rows} rows were taken in and will be sent"
                    raise RequestTimedOut(late.code, why) from None
            batches.append(batch)
        sending.wake()
        return BatchDelivery(sending.deliveries, batches)

    def _append(self, target: TopicPartition, data: bytes, record_count: int) -> ProducerBatch | None:
        """Hand one batch to the accumulator; None if the buffer is full."""
        sending = self._sending
        with sending.lock:
            sending.check_open()
            if sending.manager is not None:
                sending.manager.check_write()
            batch = sending.accumulator.append_encoded(target, data, record_count, sending.steady_ms())
            if batch is not None and sending.manager is not None:
                sending.manager.write(target)
            return batch
