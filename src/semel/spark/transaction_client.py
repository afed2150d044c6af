"""The driver's line to the coordinators: sends what `DriverTransaction` asks for, and hands it the answers.

A request that got no answer is sent again, unchanged, until the deadline. What the answers mean is decided in
`machines/pipeline/driver_transaction.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from semel.client.cluster.cluster import Cluster, Coordinator
from semel.client.cluster.metadata import TopicMetadata
from semel.errors import ErrorCode, KafkaError, RequestTimedOut
from semel.machines.pipeline.batch_marker import BatchMarker
from semel.machines.pipeline.driver_transaction import DriverTransaction, PipelineProgress
from semel.machines.pipeline.progress_record import to_record
from semel.machines.transactions.requests import Send
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.wire.messages.transactions import DescribeTransactionsRequest

from .progress_topic import ProgressTopic


class TransactionClient:
    """One `DriverTransaction` on one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        transaction: DriverTransaction,
        *,
        deadline_ms: int = 120_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = self._cluster = cluster
        self._deadline_ms = deadline_ms
        self._clock = clock
        self._progress_topic: ProgressTopic | None = None
        #: More than any one step can take: two requests to the coordinators, and finding them.
        self.longest_wait_ms = 2.0 * (deadline_ms + float(cluster.config["request.timeout.ms"]))
        #: What is decided: identity, protocol, timeout.
        self.transaction = transaction

    def keep_progress_in(self, topic: str) -> None:
        """Keep progress in a compacted topic too, where it does not expire."""
        self._progress_topic = ProgressTopic(self._cluster, topic, self.transaction.group_id)

    @property
    def now_ms(self) -> float:
        return self._clock() * 1000

    async def begin(self) -> ProducerIdentity:
        """The identity for the next transaction."""
        send = self.transaction.begin(self.now_ms, self._cluster.transaction_version)
        if send is not None:
            self.transaction.on_begun(await self._ask(send))
        assert self.transaction.identity is not None
        return self.transaction.identity

    async def is_known(self) -> bool:
        """Whether the coordinator has heard of the transactional id. If it may not be asked, or cannot tell: yes."""
        name = self.transaction.transactional_id
        try:
            answer = await self._ask(Send(DescribeTransactionsRequest(transactional_ids=[name]), "transaction", name))
        except KafkaError:
            return True
        return bool(answer.transaction_states[0].error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)

    async def progress(self, *, patient: bool = True) -> PipelineProgress:
        """What was committed last. After `begin` this waits until a half-finished commit is settled.

        Without `patient` it asks once, and an unsettled commit is a retriable error.
        """
        send = self.transaction.read_progress()
        if patient:
            answer = await self._ask(send)
        else:
            answer = await self._cluster.request(Coordinator(send.coordinator, send.key), send.message)
        found = self.transaction.on_progress(answer)
        if found.marker is None and self._progress_topic is not None:
            kept = await self._progress_topic.read()
            return replace(kept, of_others=found.of_others)
        return found

    async def add_partition(self, topic: str, partition: int) -> None:
        """Protocol V1: add a partition before anything is produced to it."""
        self.transaction.on_partition_added(await self._ask(self.transaction.add_partition(topic, partition)))

    async def commit_offsets(
        self,
        offsets: Mapping[TopicPartition, int],
        marker: BatchMarker,
        *,
        of_sources: bool = True,
        begins: Mapping[TopicPartition, int] = MappingProxyType({}),
        rows: int | None = None,
        sequences: Mapping[tuple[str, int], int] = MappingProxyType({}),
    ) -> None:
        """Put the source offsets and the marker into the transaction.

        `begins` and `rows` are for the audit. `sequences` are the next ones of the partitions that tasks have written.
        """
        add_group = self.transaction.add_group()
        if add_group is not None:
            self.transaction.on_group_added(await self._ask(add_group))
        send = self.transaction.commit_offsets(offsets, marker, of_sources=of_sources, begins=begins, rows=rows)
        if self._progress_topic is None:
            self.transaction.on_offsets_committed(await self._ask(send))
            return
        value, where = to_record(offsets, marker, of_sources=of_sources), self._progress_topic
        record = self._store(value, where, sequences.get((where.topic, 0), 0))
        answer, _ = await asyncio.gather(self._ask(send), record)
        self.transaction.on_offsets_committed(answer)

    async def _store(self, value: bytes, where: ProgressTopic, sequence: int) -> None:
        transaction, identity = self.transaction, self.transaction.identity
        assert identity is not None
        if not transaction.implicit_add:
            await self.add_partition(where.topic, 0)
        await where.write(
            value, transaction.transactional_id, identity, sequence=sequence, implicit_add=transaction.implicit_add,
            timeout_ms=self._deadline_ms,
        )  # fmt: skip

    async def end(self, *, commit: bool) -> None:
        """Commit or abort."""
        send = self.transaction.end(commit=commit)
        try:
            answer = await self._ask(send)
        except KafkaError as error:
            raise self.transaction.end_without_answer(error, commit=commit) from error
        self.transaction.on_ended(answer, commit=commit)

    async def topic(self, name: str) -> TopicMetadata:
        """An output topic and its partitions."""
        return await self._cluster.topic(name, allow_auto_create=True)

    async def existing(self, places: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Which of these partitions are on this cluster: only for them can offsets be committed."""
        await self._cluster.refresh_retrying({place.topic for place in places}, timeout_ms=self._deadline_ms)
        topics = self._cluster.metadata.topics
        return {one for one in places if one.topic in topics and one.partition < len(topics[one.topic].partitions)}

    async def _ask(self, send: Send) -> Any:
        try:
            return await self._cluster.request_retrying(
                send.message,
                to=Coordinator(send.coordinator, send.key),
                version=send.version,
                newest=send.newest,
                timeout_ms=self._deadline_ms,
            )
        except RequestTimedOut as error:
            limit = f"kafka's max.block.ms={self._deadline_ms} is how long a step of the transaction may take"
            raise RequestTimedOut(error.code, f"{error.why.rstrip('.')}; {limit}") from error
