"""Transactions: how long one takes, how many fit into a second, and how soon a commit is seen."""

from __future__ import annotations

import statistics
import threading
import time

from confluent_kafka import Consumer, TopicPartition

from bench.clients import create_topic, producer_performance, transactional_producer
from bench.harness import Family, Row, Server

TOPICS = ("orders", "payments", "ledger")
P50 = "transaction of 10 records over 3 topics, p50"
P99 = "transaction of 10 records over 3 topics, p99"
VISIBLE = "commit called to seen by a waiting read_committed consumer"
BULK = "ProducerPerformance, 100 B, committed every 100 ms"
CONCURRENT = (1, 10, 50)
LATENCY_SAMPLES = 300


def rate_name(producers: int) -> str:
    return f"transactions/s, {producers} producer{'s' if producers > 1 else ''}"


def measure(server: Server) -> dict[str, float]:
    for topic in (*TOPICS, "bulk"):
        create_topic(server, topic)
    samples = latencies(server)
    figures = {P50: statistics.median(samples), P99: statistics.quantiles(samples, n=100)[98]}
    for producers in CONCURRENT:
        figures[rate_name(producers)] = rate(server, producers)
    figures[VISIBLE] = visibility(server)
    transactional = ("--transactional-id", "bulk", "--transaction-duration-ms", 100)
    figures[BULK] = producer_performance(server, "bulk", 1_000_000, 100, *transactional)
    return figures


def latencies(server: Server) -> list[float]:
    """Milliseconds from begin to the end of commit, one transaction after another."""
    producer = transactional_producer(server, "latency")
    samples = []
    for number in range(LATENCY_SAMPLES + 20):
        began = time.perf_counter()
        producer.begin_transaction()
        for record in range(10):
            producer.produce(TOPICS[record % len(TOPICS)], f"{number}-{record}".encode())
        producer.commit_transaction(30)
        samples.append((time.perf_counter() - began) * 1000)
    return samples[20:]


def rate(server: Server, count: int, for_s: float = 4.0) -> float:
    """Committed transactions of one record per second, by so many producers at once."""
    producers = [transactional_producer(server, f"rate-{count}-{number}") for number in range(count)]
    committed = [0] * count
    begin = threading.Barrier(count + 1)
    stop = threading.Event()

    def work(number: int) -> None:
        producer = producers[number]
        begin.wait()
        while not stop.is_set():
            producer.begin_transaction()
            producer.produce("orders", b"x" * 100)
            producer.commit_transaction(30)
            committed[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    begin.wait()
    began = time.perf_counter()
    stop.wait(for_s)
    total = sum(committed)
    lasted = time.perf_counter() - began
    stop.set()
    for thread in threads:
        thread.join()
    return total / lasted


def visibility(server: Server, samples: int = 100) -> float:
    """Milliseconds from calling commit to the record in the hands of a consumer that was waiting for it."""
    settings = {
        "bootstrap.servers": server.bootstrap_servers,
        "group.id": "waiting",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    producer = transactional_producer(server, "visible")
    create_topic(server, "watched")
    consumer.assign([TopicPartition("watched", 0, 0)])
    seen_at: dict[bytes, float] = {}
    news = threading.Condition()
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                with news:
                    seen_at[message.value()] = time.perf_counter()
                    news.notify()

    watcher = threading.Thread(target=watch)
    watcher.start()
    waits = []
    try:
        for number in range(samples):
            value = str(number).encode()
            producer.begin_transaction()
            producer.produce("watched", value)
            producer.flush(30)
            called = time.perf_counter()
            producer.commit_transaction(30)
            with news:
                assert news.wait_for(lambda wanted=value: wanted in seen_at, 30), "a committed record was not seen"
            waits.append((seen_at[value] - called) * 1000)
    finally:
        stop.set()
        watcher.join()
        consumer.close()
    return statistics.median(waits[5:])


FAMILIES = [
    Family(
        "transactions",
        (
            Row(P50, "ms", 1 / 4, higher_is_better=False),
            Row(P99, "ms", 1 / 3, higher_is_better=False),
            *(Row(rate_name(producers), "1/s", 3.0, higher_is_better=True) for producers in CONCURRENT),
            Row(VISIBLE, "ms", 1 / 3, higher_is_better=False),
            Row(BULK, "records/s", 2.5, higher_is_better=True),
        ),
        measure,
    )
]
