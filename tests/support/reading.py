"""Reading a partition whole, by a client that nobody here wrote."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.support.waiting import until


def read_all(bootstrap_servers: str, topic: str, partition: int = 0, *, committed: bool = True) -> list[bytes]:
    """All values up to the end, which is the last stable offset where only committed records are asked for."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "read-all",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end is told by a fetch that found nothing
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        values: list[bytes] = []

        def at_the_end() -> bool:
            for message in consumer.consume(10_000, timeout=0.2):
                error = message.error()
                if error is None:
                    values.append(message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    return True
                else:
                    raise AssertionError(f"reading {topic}-{partition}: {error}")
            return False

        until(at_the_end, within_s=40, what=f"the end of {topic}-{partition}, {len(values)} records read")
        return values
    finally:
        consumer.close()
