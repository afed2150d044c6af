"""Three clients that nobody here wrote, behind one small face each, so that one test can be told to all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka
from kafka.structs import OffsetAndMetadata

from tests.support.waiting import until

REPLY_TIMEOUT_S = 20


class Writer(Protocol):
    """A producer; with a transactional id it is ready to begin. `send` returns when the record is acknowledged."""

    def begin(self) -> None: ...
    def send(self, topic: str, *values: bytes) -> None: ...
    def send_position(self, reader: Any, group: str) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Reader(Protocol):
    """A consumer of one topic from its beginning: by a group where one is named, else of partition 0."""

    def poll(self) -> list[bytes]: ...
    def committed(self) -> int | None: ...
    def close(self) -> None: ...


class Client(Protocol):
    """How each of the clients is made, and how it says that its producer is fenced."""

    def is_fenced(self, error: BaseException) -> bool: ...
    def writer(
        self, servers: str, transactional_id: str | None = None, *, codec: str = "none", timeout_ms: int = 60_000
    ) -> Writer: ...
    def reader(self, servers: str, topic: str, *, committed: bool = True, group: str | None = None) -> Reader: ...


def isolation(committed: bool) -> str:
    return "read_committed" if committed else "read_uncommitted"


# confluent-kafka


class ConfluentWriter:
    def __init__(self, servers: str, transactional_id: str | None, codec: str, timeout_ms: int) -> None:
        settings = {"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 5, "log_level": 0}
        if transactional_id is not None:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        self.producer = confluent_kafka.Producer(settings)
        if transactional_id is not None:
            self.producer.init_transactions(REPLY_TIMEOUT_S)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, *values: bytes) -> None:
        refused: list[Any] = []
        for value in values:
            self.producer.produce(topic, value, on_delivery=lambda error, _: refused.append(error) if error else None)
        assert self.producer.flush(REPLY_TIMEOUT_S) == 0
        if refused:
            raise confluent_kafka.KafkaException(refused[0])

    def send_position(self, reader: ConfluentReader, group: str) -> None:
        positions = reader.consumer.position([confluent_kafka.TopicPartition(reader.topic, 0)])
        metadata = reader.consumer.consumer_group_metadata()
        self.producer.send_offsets_to_transaction(positions, metadata, REPLY_TIMEOUT_S)

    def commit(self) -> None:
        self.producer.commit_transaction(REPLY_TIMEOUT_S)

    def abort(self) -> None:
        self.producer.abort_transaction(REPLY_TIMEOUT_S)

    def close(self) -> None:
        self.producer.purge()


class ConfluentReader:
    def __init__(self, servers: str, topic: str, committed: bool, group: str | None) -> None:
        self.topic = topic
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group or "nobody",
                "isolation.level": isolation(committed),
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        if group is None:
            self.consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        else:
            self.consumer.subscribe([topic])

    def poll(self) -> list[bytes]:
        return [message.value() for message in self.consumer.consume(20, timeout=0.2) if message.error() is None]

    def committed(self) -> int | None:
        found = self.consumer.committed([confluent_kafka.TopicPartition(self.topic, 0)], REPLY_TIMEOUT_S)[0].offset
        return found if found >= 0 else None

    def close(self) -> None:
        self.consumer.close()


class Confluent:
    def is_fenced(self, error: BaseException) -> bool:
        fatal: bool = isinstance(error, confluent_kafka.KafkaException) and error.args[0].fatal()
        return fatal

    def writer(
        self, servers: str, transactional_id: str | None = None, *, codec: str = "none", timeout_ms: int = 60_000
    ) -> ConfluentWriter:
        return ConfluentWriter(servers, transactional_id, codec, timeout_ms)

    def reader(self, servers: str, topic: str, *, committed: bool = True, group: str | None = None) -> ConfluentReader:
        return ConfluentReader(servers, topic, committed, group)


# kafka-python


class KafkaPythonWriter:
    def __init__(self, servers: str, transactional_id: str | None, codec: str, timeout_ms: int) -> None:
        self.producer = kafka.KafkaProducer(
            bootstrap_servers=servers,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            compression_type=None if codec == "none" else codec,
            linger_ms=5,
        )
        if transactional_id is not None:
            self.producer.init_transactions()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, *values: bytes) -> None:
        for answer in [self.producer.send(topic, value) for value in values]:
            answer.get(REPLY_TIMEOUT_S)

    def send_position(self, reader: KafkaPythonReader, group: str) -> None:
        place = kafka.TopicPartition(reader.topic, 0)
        offsets = {place: OffsetAndMetadata(reader.consumer.position(place), "", -1)}
        self.producer.send_offsets_to_transaction(offsets, reader.consumer.group_metadata())

    def commit(self) -> None:
        self.producer.commit_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(timeout=1)


class KafkaPythonReader:
    def __init__(self, servers: str, topic: str, committed: bool, group: str | None) -> None:
        self.topic = topic
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            isolation_level=isolation(committed),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        if group is None:
            self.consumer.assign([kafka.TopicPartition(topic, 0)])
        else:
            self.consumer.subscribe([topic])
            # One that joins before it has heard of the topic's partitions is given none, and takes its time to notice.
            until(lambda: self.consumer.partitions_for_topic(topic), what="the topic's partitions")

    def poll(self) -> list[bytes]:
        return [one.value for part in self.consumer.poll(200, max_records=20).values() for one in part]

    def committed(self) -> int | None:
        found: int | None = self.consumer.committed(kafka.TopicPartition(self.topic, 0))
        return found

    def close(self) -> None:
        self.consumer.close()


class KafkaPython:
    def is_fenced(self, error: BaseException) -> bool:
        return isinstance(error, kafka.errors.ProducerFencedError)

    def writer(
        self, servers: str, transactional_id: str | None = None, *, codec: str = "none", timeout_ms: int = 60_000
    ) -> KafkaPythonWriter:
        return KafkaPythonWriter(servers, transactional_id, codec, timeout_ms)

    def reader(
        self, servers: str, topic: str, *, committed: bool = True, group: str | None = None
    ) -> KafkaPythonReader:
        return KafkaPythonReader(servers, topic, committed, group)


# aiokafka


class LoopThread:
    """A loop in a thread, so that an asyncio client can be used by a test that is not."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(REPLY_TIMEOUT_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class AiokafkaWriter:
    def __init__(self, servers: str, transactional_id: str | None, codec: str, timeout_ms: int) -> None:
        self.on = LoopThread()

        async def make() -> Any:
            return aiokafka.AIOKafkaProducer(
                bootstrap_servers=servers,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                compression_type=None if codec == "none" else codec,
                linger_ms=5,
            )

        self.producer = self.on.run(make())
        self.on.run(self.producer.start())

    def begin(self) -> None:
        self.on.run(self.producer.begin_transaction())

    def send(self, topic: str, *values: bytes) -> None:
        async def send_all() -> None:
            for answer in [await self.producer.send(topic, value) for value in values]:
                await answer

        self.on.run(send_all())

    def send_position(self, reader: AiokafkaReader, group: str) -> None:
        place = aiokafka.TopicPartition(reader.topic, 0)
        offset = reader.on.run(reader.consumer.position(place))
        self.on.run(self.producer.send_offsets_to_transaction({place: offset}, group))

    def commit(self) -> None:
        self.on.run(self.producer.commit_transaction())

    def abort(self) -> None:
        self.on.run(self.producer.abort_transaction())

    def close(self) -> None:
        self.on.run(self.producer.stop())
        self.on.close()


class AiokafkaReader:
    def __init__(self, servers: str, topic: str, committed: bool, group: str | None) -> None:
        self.topic = topic
        self.on = LoopThread()

        async def make() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=servers,
                group_id=group,
                isolation_level=isolation(committed),
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
            if group is None:
                consumer.assign([aiokafka.TopicPartition(topic, 0)])
            else:
                consumer.subscribe([topic])
            await consumer.start()
            return consumer

        self.consumer = self.on.run(make())

    def poll(self) -> list[bytes]:
        found = self.on.run(self.consumer.getmany(timeout_ms=200, max_records=20))
        return [one.value for part in found.values() for one in part]

    def committed(self) -> int | None:
        found: int | None = self.on.run(self.consumer.committed(aiokafka.TopicPartition(self.topic, 0)))
        return found

    def close(self) -> None:
        self.on.run(self.consumer.stop())
        self.on.close()


class Aiokafka:
    def is_fenced(self, error: BaseException) -> bool:
        return isinstance(error, aiokafka.errors.ProducerFenced)

    def writer(
        self, servers: str, transactional_id: str | None = None, *, codec: str = "none", timeout_ms: int = 60_000
    ) -> AiokafkaWriter:
        return AiokafkaWriter(servers, transactional_id, codec, timeout_ms)

    def reader(self, servers: str, topic: str, *, committed: bool = True, group: str | None = None) -> AiokafkaReader:
        return AiokafkaReader(servers, topic, committed, group)


CLIENTS: dict[str, Client] = {"confluent-kafka": Confluent(), "kafka-python": KafkaPython(), "aiokafka": Aiokafka()}
