"""A client without manners: frames over a plain socket, so that a test can say exactly what it means."""

from __future__ import annotations

import socket
import struct
import time
import uuid
from typing import Any

from semel.broker.embedded import Broker
from semel.records.batch import Batch, build, read_records, split
from semel.wire.apis import APIS, ApiKey
from semel.wire.frames import parse_response, request_frame
from semel.wire.messages.admin import CreateTopicsRequest
from semel.wire.messages.fetch import FetchRequest, FetchResponse, ListOffsetsRequest
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.produce import ProduceRequest, ProduceResponse
from tests.support.waiting import until

_KEYS = {api.name: api.key for api in APIS.values()}


class Raw:
    """One connection."""

    def __init__(self, broker: Broker | str, client_id: str = "raw") -> None:
        address = broker if isinstance(broker, str) else broker.bootstrap_servers
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self.client_id = client_id
        self._elsewhere = isinstance(broker, str)
        self._correlation_id = 0

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, message: Any, version: int | None = None) -> tuple[ApiKey, int, int]:
        frame, sent = self._frame(message, version)
        self.socket.sendall(frame)
        return sent

    def send_together(self, *requests: tuple[Any, int]) -> list[tuple[ApiKey, int, int]]:
        """Send several requests at once, so that the broker reads them at once."""
        framed = [self._frame(message, version) for message, version in requests]
        self.socket.sendall(b"".join(frame for frame, _ in framed))
        return [sent for _, sent in framed]

    def _frame(self, message: Any, version: int | None) -> tuple[bytes, tuple[ApiKey, int, int]]:
        key = _KEYS[type(message).__name__.removesuffix("Request")]
        version = APIS[key].max_version if version is None else version
        self._correlation_id += 1
        frame = request_frame(key, version, self._correlation_id, self.client_id, message)
        return b"".join(frame), (key, version, self._correlation_id)

    def receive(self, sent: tuple[ApiKey, int, int]) -> Any:
        correlation_id, response = parse_response(sent[0], sent[1], self.receive_frame())
        assert correlation_id == sent[2]
        return response

    def ask(self, message: Any, version: int | None = None) -> Any:
        return self.receive(self.send(message, version))

    def receive_frame(self) -> bytes:
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

    def is_closed(self) -> bool:
        """Whether the broker closed the connection; waits for it up to the socket's timeout."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self.socket.recv(count - len(parts))
            if not part:
                raise ConnectionResetError("closed by the broker")
            parts += part
        return bytes(parts)

    # What most tests want to do

    def create(self, name: str, partitions: int = 1, **settings: str) -> uuid.UUID:
        """Create a topic; settings with underscores for dots."""
        configs = [
            CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in settings.items()
        ]
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=configs
        )
        result = self.ask(CreateTopicsRequest(topics=[topic])).topics[0]
        assert result.error_code == 0, result
        if self._elsewhere:
            # Kafka answers before its partitions have their leader.
            for partition in range(partitions):
                until(lambda p=partition: self._is_led(name, p), what=f"{name}-{partition} to have a leader")
        topic_id: uuid.UUID = result.topic_id
        return topic_id

    def _is_led(self, topic: str, partition: int) -> bool:
        row = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=-2)
        asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[row])
        answer = self.ask(ListOffsetsRequest(replica_id=-1, topics=[asked]), 9)
        return bool(answer.topics[0].partitions[0].error_code == 0)

    def topic_id(self, name: str) -> uuid.UUID:
        row = MetadataRequest.MetadataRequestTopic(name=name)
        found: uuid.UUID = self.ask(MetadataRequest(topics=[row])).topics[0].topic_id
        return found

    def produce(
        self,
        topic: str,
        data: bytes,
        *,
        partition: int = 0,
        acks: int = -1,
        transactional_id: str | None = None,
        version: int = 12,
    ) -> ProduceResponse.PartitionProduceResponse:
        """One batch; version 12 goes by name and adds to transactions by itself, 11 does not."""
        asked = produce_request(topic, data, partition=partition, acks=acks, transactional_id=transactional_id)
        response: ProduceResponse = self.ask(asked, version)
        return response.responses[0].partition_responses[0]

    def fetch(
        self, topic: str, offset: int = 0, *, partition: int = 0, version: int = 12, **options: Any
    ) -> FetchResponse.PartitionData:
        """One partition, without a session."""
        response: FetchResponse = self.ask(fetch_request({(topic, partition): offset}, **options), version)
        assert response.error_code == 0, response.error_code
        return response.responses[0].partitions[0]

    def values(self, topic: str, **options: Any) -> list[bytes | None]:
        """Every value of a partition as a reader without filters sees it."""
        data = self.fetch(topic, max_wait_ms=0, **options)
        return values_of(data)


def values_of(data: FetchResponse.PartitionData) -> list[bytes | None]:
    found: list[bytes | None] = []
    for stored in split(data.records or b""):
        if not stored.is_control:
            found += [None if record.value is None else bytes(record.value) for record in read_records(stored)]
    return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def batch(*values: bytes, key: bytes | None = None, timestamp_ms: int | None = None, **options: Any) -> bytes:
    """A batch as a client would send it."""
    pairs = [(key, value) for value in values or (b"value",)]
    return build(pairs, timestamp_ms=now_ms() if timestamp_ms is None else timestamp_ms, **options)


def produce_request(
    topic: str, data: bytes | None, *, partition: int = 0, acks: int = -1, transactional_id: str | None = None
) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic, partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=data)]
            )
        ],
    )


def fetch_request(
    offsets: dict[tuple[str, int], int],
    *,
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    max_bytes: int = 50 * 1024 * 1024,
    partition_max_bytes: int = 1024 * 1024,
    isolation_level: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    replica_id: int = -1,
    forgotten: dict[str, list[int]] | None = None,
) -> FetchRequest:
    by_topic: dict[str, list[FetchRequest.FetchPartition]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, []).append(
            FetchRequest.FetchPartition(
                partition=partition,
                fetch_offset=offset,
                partition_max_bytes=partition_max_bytes,
                current_leader_epoch=current_leader_epoch,
                last_fetched_epoch=last_fetched_epoch,
            )
        )
    return FetchRequest(
        replica_id=replica_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=rows) for topic, rows in by_topic.items()],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic=topic, partitions=rows) for topic, rows in (forgotten or {}).items()
        ],
    )


def stored_batches(data: FetchResponse.PartitionData) -> list[Batch]:
    return split(data.records or b"")
