"""Producing and consuming in bulk: rates at the client, and what they cost the broker."""

from __future__ import annotations

from bench.clients import consume_all, create_topic, producer_performance
from bench.harness import Family, Row, Server

SMALL = "produce 1,000,000 x 100 B, acks=all"
LARGE = "produce 500,000 x 1 KB, acks=all"
CPU = "broker CPU for the first"
CONSUME = "consume the first back, librdkafka"
CEILING = "the same, if Semel stored nothing"
GROWTH = "cost per record, 1,000 partitions to 1"


def measure(server: Server) -> dict[str, float]:
    create_topic(server, "small")
    create_topic(server, "large")
    producer_performance(server, "large", 20_000, 100)  # a warm JVM and a warm interpreter: the rate, not the start
    before = server.process.cpu_s()
    small = producer_performance(server, "small", 1_000_000, 100)
    cpu = server.process.cpu_s() - before
    consumed = consume_all(server, "small", 1_000_000)
    large = producer_performance(server, "large", 500_000, 1_000)
    return {SMALL: small, CPU: cpu, CONSUME: consumed, LARGE: large}


def measure_ceiling(server: Server) -> dict[str, float]:
    """The client against a broker that stores nothing: no broker can be driven faster on this machine."""
    create_topic(server, "small")
    create_topic(server, "large")
    producer_performance(server, "large", 20_000, 100)
    return {CEILING: producer_performance(server, "small", 1_000_000, 100)}


def measure_growth(server: Server) -> dict[str, float]:
    """Broker CPU per record when records are spread over 1,000 partitions, against one partition."""
    create_topic(server, "one")
    create_topic(server, "thousand", partitions=1_000)
    costs = []
    for topic in ("one", "thousand"):
        before = server.process.cpu_s()
        producer_performance(server, topic, 500_000, 1_000, properties=("linger.ms=50",))
        costs.append(server.process.cpu_s() - before)
    return {GROWTH: costs[1] / costs[0]}


FAMILIES = [
    Family(
        "produce",
        (
            Row(SMALL, "records/s", 3.0, higher_is_better=True),
            Row(CPU, "s", 0.2, higher_is_better=False),
            Row(CONSUME, "records/s", 1.2, higher_is_better=True),
            Row(LARGE, "records/s", 1.5, higher_is_better=True),
        ),
        measure,
    ),
    Family(
        "ceiling",
        (Row(CEILING, "records/s", None, higher_is_better=True),),
        measure_ceiling,
        module="bench.storing_nothing",
    ),
    Family(
        "partitions",
        (Row(GROWTH, "x", 1.3, higher_is_better=False, alone=True),),
        measure_growth,
        semel_alone=True,
    ),
]
