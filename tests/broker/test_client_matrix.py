"""The same transactions told to confluent-kafka, kafka-python and aiokafka; the Java client has them in tests/tools.

Every reading goes on until the record `END`, which is written last and outside of transactions: so a reader of
committed records that gets there has also shown that nothing holds it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import aiokafka
import kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AiokafkaNewPartitions
from aiokafka.admin import NewTopic as AiokafkaNewTopic
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic

from semel.broker.embedded import Broker
from tests.broker.other_clients import CLIENTS, Client, Writer
from tests.support.waiting import until

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
END = b"end"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}) as running:
        yield running


@pytest.fixture(params=sorted(CLIENTS))
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]


Write = Callable[..., Writer]


@pytest.fixture
def write(broker: Broker, client: Client) -> Iterator[Write]:
    """Makes producers of the client, and closes them whatever has become of them."""
    made: list[Writer] = []

    def make(transactional_id: str | None = None, **settings: object) -> Writer:
        made.append(client.writer(broker.bootstrap_servers, transactional_id, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for writer in made:
        writer.close()


def read(broker: Broker, client: Client, topic: str, *, committed: bool = True) -> list[bytes]:
    """All values before `END`."""
    reader = client.reader(broker.bootstrap_servers, topic, committed=committed)
    values: list[bytes] = []

    def ended() -> bool:
        values.extend(reader.poll())
        return END in values

    try:
        until(ended, within_s=20, what=f"the end of {topic}, behind {values}")
    finally:
        reader.close()
    return values[: values.index(END)]


def finish(write: Write, *topics: str) -> None:
    plain = write()
    for topic in topics:
        plain.send(topic, END)


def assert_fenced(client: Client, step: Callable[[], None]) -> None:
    """The step is refused, for good."""
    with pytest.raises(Exception) as refused:
        step()
    assert client.is_fenced(refused.value), repr(refused.value)


@pytest.mark.parametrize("codec", CODECS)
def test_transactions_over_two_topics_are_kept_or_dropped_whole(
    broker: Broker, client: Client, write: Write, topic: str, codec: str
) -> None:
    one, two = topic + "-one", topic + "-two"
    kept = [b"%d-%s" % (number, b"x" * 100) for number in range(50)]
    producer = write(topic, codec=codec)
    producer.begin()
    producer.send(one, *kept)
    producer.send(two, *kept)
    producer.commit()
    producer.begin()
    producer.send(one, b"dropped")
    producer.send(two, b"dropped")
    producer.abort()
    producer.begin()
    producer.send(two, b"after")
    producer.commit()
    finish(write, one, two)
    assert read(broker, client, one) == kept
    assert read(broker, client, two) == [*kept, b"after"]
    assert read(broker, client, one, committed=False) == [*kept, b"dropped"]
    assert read(broker, client, two, committed=False) == [*kept, b"dropped", b"after"]


def test_what_is_open_is_seen_by_readers_of_everything_and_holds_back_those_of_committed_records(
    broker: Broker, client: Client, write: Write, topic: str
) -> None:
    producer = write(topic)
    producer.begin()
    producer.send(topic, b"open")
    finish(write, topic)
    assert read(broker, client, topic, committed=False) == [b"open"]
    reader = client.reader(broker.bootstrap_servers, topic)
    try:
        assert [value for _ in range(5) for value in reader.poll()] == []
        producer.commit()
        values: list[bytes] = []
        until(lambda: values.extend(reader.poll()) or END in values, what="the committed record")
        assert values == [b"open", END]
    finally:
        reader.close()


def test_a_second_instance_with_the_same_id_fences_the_first(
    broker: Broker, client: Client, write: Write, topic: str
) -> None:
    first = write(topic)
    first.begin()
    first.send(topic, b"zombie")
    second = write(topic)
    assert_fenced(client, first.commit)
    second.begin()
    second.send(topic, b"second")
    second.commit()
    finish(write, topic)
    assert read(broker, client, topic) == [b"second"]
    assert read(broker, client, topic, committed=False) == [b"zombie", b"second"]


def test_a_transaction_over_its_timeout_is_aborted_and_its_producer_cannot_commit_it(
    broker: Broker, client: Client, write: Write, topic: str
) -> None:
    slow = write(topic, timeout_ms=1000)
    slow.begin()
    slow.send(topic, b"late")
    finish(write, topic)
    assert read(broker, client, topic) == [], "readers of committed records get past it only by its abort"
    assert_fenced(client, slow.commit)
    again = write(topic)
    again.begin()
    again.send(topic + "-more", b"again", END)
    again.commit()
    assert read(broker, client, topic + "-more") == [b"again"]


def test_records_are_consumed_transformed_and_produced_once_with_their_offsets(
    broker: Broker, client: Client, write: Write, topic: str
) -> None:
    source, target = topic + "-in", topic + "-out"
    write().send(source, *(b"%d" % number for number in range(60)))
    producer = write(topic)
    done = 0

    def copy(*, drop_first: bool) -> None:
        """Reads as a member of the group and writes until all is done, or one batch whose transaction is aborted."""
        nonlocal done
        reader = client.reader(broker.bootstrap_servers, source, group=topic)
        try:
            while done < 60:
                values = until(reader.poll, what="records to copy")
                producer.begin()
                producer.send(target, *(value + b"!" for value in values))
                producer.send_position(reader, topic)
                if drop_first:
                    producer.abort()
                    return
                producer.commit()
                done += len(values)
        finally:
            reader.close()

    copy(drop_first=True)
    copy(drop_first=False)
    reader = client.reader(broker.bootstrap_servers, source, group=topic)
    assert reader.committed() == 60
    reader.close()
    finish(write, target)
    assert read(broker, client, target) == [b"%d!" % number for number in range(60)]
    assert len(read(broker, client, target, committed=False)) > 60


def test_kafka_python_administers(broker: Broker, topic: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "1234"})])
        with pytest.raises(kafka.errors.TopicAlreadyExistsError):
            admin.create_topics([NewTopic(topic, 2, 1)])
        assert topic in admin.list_topics()
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        assert "1234" in str(admin.describe_configs([resource]))
        admin.create_partitions({topic: 5})
        (described,) = admin.describe_topics([topic])
        assert len(described["partitions"]) == 5
        assert len(admin.describe_cluster()["brokers"]) == 1
        producer = CLIENTS["kafka-python"].writer(broker.bootstrap_servers, topic)
        producer.begin()
        producer.send(topic, b"open")
        (state,) = admin.describe_transactions([topic]).values()
        assert state.state.value == "Ongoing"
        producer.commit()
        producer.close()
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()
    finally:
        admin.close()


def test_kafka_python_looks_after_groups(broker: Broker, topic: str) -> None:
    writer = CLIENTS["kafka-python"].writer(broker.bootstrap_servers)
    writer.send(topic, b"one", b"two")
    writer.close()
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap_servers, group_id=topic, auto_offset_reset="earliest"
    )
    try:
        # One that joins before it has heard of the topic's partitions is given none, and takes its time to join again.
        until(lambda: consumer.partitions_for_topic(topic), what="the topic's partitions")
        until(lambda: consumer.poll(200), what="the records")
        consumer.commit()
        assert topic in str(admin.list_groups())
        assert "Stable" in str(admin.describe_groups([topic]))
        assert kafka.TopicPartition(topic, 0) in consumer.assignment()
        consumer.close()
        offsets = admin.list_group_offsets({topic: None})[topic]
        assert offsets[kafka.TopicPartition(topic, 0)].offset == 2
        admin.delete_groups([topic])
        assert topic not in str(admin.list_groups())
    finally:
        admin.close()


def test_aiokafka_administers(broker: Broker, topic: str) -> None:
    async def conversation() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        try:
            made = AiokafkaNewTopic(topic, 2, 1, topic_configs={"retention.ms": "1234"})
            await admin.create_topics([made])
            assert topic in await admin.list_topics()
            await admin.create_partitions({topic: AiokafkaNewPartitions(5)})
            (described,) = await admin.describe_topics([topic])
            assert len(described["partitions"]) == 5
            assert len((await admin.describe_cluster())["brokers"]) == 1
            consumer = aiokafka.AIOKafkaConsumer(
                topic, bootstrap_servers=broker.bootstrap_servers, group_id=topic, auto_offset_reset="earliest"
            )
            await consumer.start()
            await consumer.commit({aiokafka.TopicPartition(topic, 0): 0})
            assert topic in [name for name, *_ in await admin.list_consumer_groups()]
            offsets = await admin.list_consumer_group_offsets(topic)
            assert offsets[aiokafka.TopicPartition(topic, 0)].offset == 0
            await consumer.stop()
            await admin.delete_topics([topic])
            assert topic not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(conversation())
