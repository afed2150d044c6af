"""From one broker to three: a broker that was alone brings its topics into ZooKeeper, killed at every point."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import semel.cluster.zookeeper as with_kazoo
from semel.broker.server import BrokerServer
from semel.cluster.zookeeper import KazooSession
from semel.config import BROKER, ConfigError
from semel.errors import Refused
from semel.simulation.zookeeper.on_a_socket import ZooKeeperOnASocket
from tests.support.processes import BrokerProcess

pytestmark = pytest.mark.timeout(240)
CONSENT = {"semel.cluster.join.with.topics": "true"}
RECORDS = 300


@pytest.fixture
def zookeeper() -> Iterator[ZooKeeperOnASocket]:
    with ZooKeeperOnASocket() as running:
        yield running


def broker(place: Path, number: int = 1, **settings: object) -> BrokerProcess:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return BrokerProcess(place / f"broker-{number}", settings={"node.id": number, **given}, log_level="info")


def in_cluster(one: BrokerProcess, zookeeper: ZooKeeperOnASocket, **more: str) -> None:
    one.settings |= {"zookeeper.connect": zookeeper.connect, **more}


def refused(one: BrokerProcess) -> str:
    """What a broker says whose start is refused."""
    process = one.launch()
    assert process.wait(within_s=60) != 0, process.output()
    return process.output()


def written(place: Path) -> tuple[BrokerProcess, list[bytes]]:
    """A broker that is alone, with records, committed offsets, producer ids and a transaction that is open."""
    one = broker(place, transaction_max_timeout_ms=900_000).start()
    admin = AdminClient({"bootstrap.servers": one.bootstrap_servers})
    for made in admin.create_topics([NewTopic("payments", 3, 1, config={"retention.ms": "777777777"})]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": one.bootstrap_servers, "enable.idempotence": True})
    values = [b"%d" % number for number in range(RECORDS)]
    for value in values:
        producer.produce("payments", value, key=value)
    assert producer.flush(60) == 0
    consumer = reader(one.bootstrap_servers)
    offsets = [TopicPartition("payments", number, 10 + number) for number in range(3)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    return one, values


def reader(servers: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "readers",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )


def open_transaction(servers: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": servers, "transactional.id": "transfers", "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("payments", b"of the transaction", partition=0)
    assert producer.flush(60) == 0
    return producer


def read(servers: str, count: int) -> list[bytes]:
    """What a reader of committed records finds: `count` of them, and no more."""
    consumer = reader(servers)
    consumer.assign([TopicPartition("payments", number, 0) for number in range(3)])
    found: list[bytes] = []
    try:
        deadline = time.monotonic() + 90
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records were read"
            found += [value for message in consumer.consume(500, 0.2) if (value := message.value()) is not None]
        for number in range(3):
            low, high = consumer.get_watermark_offsets(TopicPartition("payments", number), 30)
            assert low == 0 and high > 0
    finally:
        consumer.close()
    return found


def committed(servers: str) -> list[int]:
    consumer = reader(servers)
    try:
        rows = consumer.committed([TopicPartition("payments", number) for number in range(3)], 60)
        return [row.offset for row in rows]
    finally:
        consumer.close()


def test_a_broker_with_records_offsets_and_an_open_transaction_begins_a_cluster_of_three(
    tmp_path: Path, zookeeper: ZooKeeperOnASocket
) -> None:
    first, values = written(tmp_path)
    others = [broker(tmp_path, number) for number in (2, 3)]
    try:
        producer = open_transaction(first.bootstrap_servers)
        first.kill9()
        in_cluster(first, zookeeper)
        words = refused(first)
        assert "semel.cluster.join.with.topics=true" in words and "cannot be undone" in words, words

        first.settings |= CONSENT
        for pause_s in (0.35, 0.5, 0.7):
            # Wherever it is by then: the next start goes on from there.
            process = first.launch()
            time.sleep(pause_s)
            process.kill9()
        first.start(within_s=90)
        for other in others:
            in_cluster(other, zookeeper)
            other.start(within_s=90)
        assert sorted(read(first.bootstrap_servers, RECORDS)) == sorted(values)
        assert committed(others[0].bootstrap_servers) == [10, 11, 12]

        # kill -9 while the topics have no other replica yet: they wait for their broker.
        first.kill9()
        first.start(within_s=90)
        assert sorted(read(first.bootstrap_servers, RECORDS)) == sorted(values)

        # Three replicas of everything, and the first broker may be lost. The transaction that was open all the while
        # goes on, and its producer commits it.
        words = [sys.executable, "-m", "semel", "cluster", "balance", "--replication-factor", "3", "--yes"]
        command = [*words, "--bootstrap", first.bootstrap_servers]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        producer.produce("payments", b"of the transaction, later", partition=0)
        assert producer.flush(60) == 0
        first.kill9()
        producer.commit_transaction(90)
        everything = sorted([*values, b"of the transaction", b"of the transaction, later"])
        assert sorted(read(others[1].bootstrap_servers, RECORDS + 2)) == everything
        assert committed(others[0].bootstrap_servers) == [10, 11, 12]

        # It cannot be alone again.
        first.start(within_s=90)
        first.stop()
        del first.settings["zookeeper.connect"]
        assert "topics are in ZooKeeper: set zookeeper.connect" in refused(first)
    finally:
        for each in (first, *others):
            each.close()


def test_a_broker_with_topics_is_refused_by_the_zookeeper_of_another_cluster(
    tmp_path: Path, zookeeper: ZooKeeperOnASocket
) -> None:
    first, values = written(tmp_path)
    other = broker(tmp_path, 2)
    try:
        first.stop()
        in_cluster(other, zookeeper)
        other.start(within_s=90)
        in_cluster(first, zookeeper, **CONSENT)
        words = refused(first)
        assert "belongs to cluster" in words and "start the other brokers after this one" in words, words
        # Nothing has changed: it is alone as before.
        del first.settings["zookeeper.connect"]
        first.start()
        assert sorted(read(first.bootstrap_servers, RECORDS)) == sorted(values)
    finally:
        first.close()
        other.close()


# Each step, by itself


class Killed(Exception):
    """In place of SIGKILL: nothing that comes after is done."""


def killed_after(writes: int, *, answered: bool) -> type[KazooSession]:
    """A session whose owner is killed at a write: before it is sent, or (`answered` is false) before its answer."""

    class Session(KazooSession):
        left = writes

        async def _write(self, name: str, *words: Any, **options: Any) -> Any:
            Session.left -= 1
            if Session.left < 0 and answered:
                raise Killed
            result = await getattr(super(), name)(*words, **options)
            if Session.left < 0:
                raise Killed
            return result

        async def create(self, *words: Any, **options: Any) -> Any:
            return await self._write("create", *words, **options)

        async def set(self, *words: Any, **options: Any) -> Any:
            return await self._write("set", *words, **options)

        async def delete(self, *words: Any, **options: Any) -> Any:
            return await self._write("delete", *words, **options)

        async def multi(self, *words: Any, **options: Any) -> Any:
            return await self._write("multi", *words, **options)

    return Session


def test_killed_before_and_after_every_write_it_goes_on_and_nobody_else_starts_meanwhile(
    tmp_path: Path, zookeeper: ZooKeeperOnASocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings(number: int, **more: str) -> Any:
        place = {"log.dirs": str(tmp_path / f"broker-{number}"), "listeners": "PLAINTEXT://127.0.0.1:0"}
        return BROKER.parse({"node.id": str(number), **place, **more})

    async def alone() -> str:
        server = BrokerServer(settings(1))
        await server.start()
        server.topics.create("payments", 2, {"retention.ms": "5"})
        server.stores.producer_ids.take()
        await server.stop()
        return server.data.cluster_id

    async def start(number: int) -> dict[str, Any]:
        server = BrokerServer(settings(number, **{"zookeeper.connect": zookeeper.connect, **CONSENT}))
        await server.start()
        with_kazoo.KazooSession.left = 1_000_000  # type: ignore[attr-defined]  # it has come to its end
        try:
            assert server.cluster is not None
            topic = json.loads((await server.cluster.session.get("/brokers/topics/payments"))[0])
            found = {"cluster": server.data.cluster_id, "partitions": topic["partitions"]}
            async with asyncio.timeout(60):
                while True:
                    with suppress(Refused):
                        return {**found, "producer_id": server.stores.producer_ids.take()}
                    await server.cluster.changed()
        finally:
            await server.stop()

    cluster_id = asyncio.run(alone())
    kills = 0
    while True:
        # Each try comes a write further than the one before. Both kinds of kill are tried at each write.
        monkeypatch.setattr(with_kazoo, "KazooSession", killed_after(20 + kills // 2, answered=kills % 2 == 0))
        try:
            found = asyncio.run(start(1))
            break
        except Killed:
            kills += 1
            if "/semel/joining" in zookeeper.ensemble.servers[0].tree.nodes:
                monkeypatch.undo()
                with pytest.raises(ConfigError, match="broker 1 is bringing its topics"):
                    asyncio.run(start(2))
    assert kills >= 8, "the kills must be amid the steps"
    assert found["cluster"] == cluster_id
    assert found["partitions"] == {"0": [1], "1": [1]}
    monkeypatch.undo()
    other = asyncio.run(start(2))
    assert other["cluster"] == cluster_id
    assert other["producer_id"] > found["producer_id"] >= 1000, "ids of before are not handed out again"
