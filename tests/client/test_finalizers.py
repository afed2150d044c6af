"""A client that nobody closed: what it was given goes out, what does not is told, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import sys
import textwrap
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel import Admin, Broker, Consumer, Producer, TransactSession
from semel.client.admin.admin import AsyncAdmin
from semel.client.blocking.blocking_client import BlockingClient
from semel.client.blocking.cluster import BlockingCluster
from semel.client.consumer.consumer import AsyncConsumer
from semel.client.producer.producer import AsyncProducer
from semel.errors import ClientClosed, ErrorCode
from semel.testing.fault_proxy import FaultProxy, Mute, Passing, nth_only
from semel.wire.apis import ApiKey
from tests.support.processes import Process, free_port
from tests.support.requirements import CHECKOUT
from tests.support.waiting import until

ENVIRONMENT = {"PYTHONPATH": str(CHECKOUT / "src")}


def program(source: str, *arguments: str) -> Process:
    """A program that uses the client and forgets to close it."""
    command = [sys.executable, "-W", "default", "-c", textwrap.dedent(source), *arguments]
    return Process(command, name="program", environment=ENVIRONMENT)


def end_offset(bootstrap: str, topic: str) -> int:
    with Consumer({"bootstrap.servers": bootstrap}) as consumer:
        return sum(consumer.end_offsets([(topic, 0)]).values())


SENDS_AND_ENDS = """
    import sys, semel
    settings = {"linger.ms": 100, "buffer.memory": 100_000_000, "semel.exit.timeout.ms": 60_000}
    producer = semel.Producer({"bootstrap.servers": sys.argv[1], **settings})
    for number in range(int(sys.argv[3])):
        producer.send(sys.argv[2], b"%d" % number)
"""


def test_a_program_that_ends_without_close_still_delivers_what_it_sent(session_broker: Broker, name: str) -> None:
    address = session_broker.bootstrap_servers
    with program(SENDS_AND_ENDS, address, name, "20001") as ended:
        assert ended.wait() == 0, ended.output()
        assert "semel-producer was not closed" not in ended.output()  # the program's end is no leak
    assert end_offset(address, name) == 20_001


def test_a_program_that_raises_still_delivers_what_it_sent(session_broker: Broker, name: str) -> None:
    address = session_broker.bootstrap_servers
    with program(SENDS_AND_ENDS + "    raise SystemExit(3)\n", address, name, "5") as ended:
        assert ended.wait() == 3, ended.output()
    assert end_offset(address, name) == 5


def test_a_program_whose_records_cannot_be_delivered_ends_in_time_and_says_how_many(
    session_broker: Broker, name: str
) -> None:
    source = """
        import sys, semel
        address, topic = sys.argv[1:]
        settings = {"bootstrap.servers": address, "linger.ms": 0, "semel.exit.timeout.ms": 300, "batch.size": 100}
        producer = semel.Producer(settings)
        producer.send(topic, b"first").result(30)
        for number in range(50):
            producer.send(topic, b"%d" % number)
    """
    with (
        FaultProxy(session_broker.bootstrap_servers, nth_only(2, ApiKey.PRODUCE, Mute())) as proxy,
        program(source, proxy.bootstrap_servers, name) as ended,
    ):
        assert ended.wait() == 0, ended.output()
        told = re.search(r"(\d+) records were not sent, (\d+) were sent and not acknowledged", ended.output())
        assert told is not None, ended.output()
        assert sum(int(count) for count in told.groups()) == 50
        assert "semel.exit.timeout.ms=300" in ended.output()


def test_a_program_without_a_broker_ends_at_once(name: str) -> None:
    source = """
        import sys, semel
        kept = [semel.Producer, semel.Consumer, semel.Admin]
        kept = [kind({"bootstrap.servers": sys.argv[1]}) for kind in kept]
    """
    with program(source, f"127.0.0.1:{free_port()}") as ended:
        assert ended.wait() == 0, ended.output()


def faces(address: str, name: str) -> dict[str, Callable[[], BlockingClient]]:
    config = {"bootstrap.servers": address}

    def consumer() -> Consumer:
        consumer = Consumer({**config, "group.id": name, "auto.offset.reset": "earliest"})
        consumer.subscribe(name)
        consumer.poll(100)
        return consumer

    def producer() -> Producer:
        producer = Producer(config)
        producer.send(name, b"x").result(30)
        return producer

    def admin() -> Admin:
        admin = Admin(config)
        admin.list_topics()
        return admin

    def cluster() -> BlockingCluster:
        cluster = BlockingCluster(config)
        cluster.connect()
        return cluster

    def session() -> TransactSession:
        session = TransactSession({**config, "group.id": name, "transactional.id": name})
        session.subscribe(name)
        with session.transaction(100):
            pass
        return session

    return {made.__name__: made for made in (producer, consumer, admin, cluster, session)}


def drop(kept: list[Any]) -> None:
    """Let go of the only reference there is."""
    kept.clear()
    gc.collect()


def descriptors() -> set[str]:
    """What this process has open, without the broker's side of connections that are being closed."""
    return {f"{entry.name}" for entry in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("kind", ["producer", "consumer", "admin", "cluster", "session"])
def test_a_client_that_is_dropped_warns_and_leaves_neither_thread_nor_descriptor(
    broker_process, name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make = faces(broker_process.bootstrap_servers, name)[kind]
    with Admin({"bootstrap.servers": broker_process.bootstrap_servers}) as admin:
        admin.create_topic(name)
    make().close()  # what is loaded once is loaded
    threads, before = set(threading.enumerate()), len(descriptors())
    kept = [make()]
    assert len(descriptors()) > before
    with pytest.warns(ResourceWarning, match=rf"semel-{kind} was not closed: call close\(\)"):
        drop(kept)
    until(lambda: set(threading.enumerate()) <= threads, what="the thread to end")
    until(lambda: len(descriptors()) <= before, what="the descriptors to be closed")
    assert f"semel-{kind} was dropped without being closed" in caplog.text, "Python hides a ResourceWarning"


def test_records_of_a_producer_that_is_dropped_are_delivered(session_broker: Broker, name: str) -> None:
    more = {"linger.ms": 200, "semel.exit.timeout.ms": 60_000}
    kept = [Producer({"bootstrap.servers": session_broker.bootstrap_servers, **more})]
    deliveries = [kept[0].send(name, b"%d" % number) for number in range(100)]
    with pytest.warns(ResourceWarning):
        drop(kept)
    assert [delivery.result(30).offset for delivery in deliveries] == list(range(100))


def test_a_consumer_that_is_dropped_leaves_its_group_and_commits_nothing(session_broker: Broker, name: str) -> None:
    config = {"bootstrap.servers": session_broker.bootstrap_servers}
    with Producer(config) as producer:
        for number in range(10):
            producer.send(name, b"%d" % number)
    kept = [Consumer({**config, "group.id": name, "auto.offset.reset": "earliest"})]
    kept[0].subscribe(name)
    assert until(lambda: kept[0].poll(1_000), what="records")
    with Admin(config) as admin:
        assert len(admin.describe_groups([name])[name].members) == 1
        with pytest.warns(ResourceWarning):
            drop(kept)
        until(lambda: not admin.describe_groups([name])[name].members, what="the member to leave")
        assert admin.list_group_offsets(name) == {}


def test_a_client_that_has_raised_is_let_go_of_without_a_garbage_collection(session_broker: Broker) -> None:
    consumer = Consumer({"bootstrap.servers": session_broker.bootstrap_servers})
    with pytest.raises(TypeError):
        consumer.assign(["t"])  # type: ignore[list-item]
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(TypeError) as raised:
            consumer.assign(["t"])  # type: ignore[list-item]
        del raised
        gone = weakref.ref(consumer)
        with pytest.warns(ResourceWarning):
            del consumer
        assert gone() is None
    finally:
        gc.enable()


def test_a_client_that_was_closed_or_never_made_does_not_warn(session_broker: Broker) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        producer = Producer({"bootstrap.servers": session_broker.bootstrap_servers})
        producer.close()
        producer.close()
        del producer
        with pytest.raises(ValueError, match="compression"):
            Producer({"bootstrap.servers": session_broker.bootstrap_servers, "compression.typ": 1})
        gc.collect()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_and_an_admin_for_asyncio_that_are_dropped_warn_leave_and_let_go(
    broker_process, name: str, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"bootstrap.servers": broker_process.bootstrap_servers}

    async def run() -> None:
        async with AsyncAdmin(config) as watching:
            await watching.create_topic(name)
            before = len(descriptors())
            kept: list[Any] = [
                AsyncConsumer({**config, "group.id": name, "group.protocol": protocol}),
                AsyncAdmin(config),
            ]
            await kept[0].subscribe(name)
            while not kept[0].assignment():
                await kept[0].poll(50)
            await kept[1].list_topics()
            assert (await watching.describe_groups([name]))[name].members
            assert len(descriptors()) > before
            with pytest.warns(ResourceWarning, match="consumer was not closed"):
                drop(kept)
            deadline = time.monotonic() + 30
            while (await watching.describe_groups([name]))[name].members or len(descriptors()) > before + 2:
                assert time.monotonic() < deadline, "the group still has the member that nobody has any more"
                gc.collect()
                await asyncio.sleep(0.02)

    asyncio.run(run())
    assert "a consumer was dropped without being closed" in caplog.text
    assert "an admin was dropped without being closed" in caplog.text


def test_a_producer_for_asyncio_that_is_dropped_warns_delivers_and_lets_go(broker_process, name: str) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        before = len(asyncio.all_tasks())
        more = {"linger.ms": 50, "semel.exit.timeout.ms": 60_000}
        kept = [AsyncProducer({"bootstrap.servers": broker_process.bootstrap_servers, **more})]
        opened = len(descriptors())
        delivery = await kept[0].send(name, b"x")
        assert len(descriptors()) > opened
        with pytest.warns(ResourceWarning, match="a producer was not closed"):
            drop(kept)
        assert (await delivery).offset == 0
        await asyncio.to_thread(until, lambda: len(asyncio.all_tasks(loop)) <= before + 1, what="its tasks to end")
        await asyncio.to_thread(until, lambda: len(descriptors()) <= opened, what="its descriptors to be closed")

    asyncio.run(asyncio.wait_for(run(), 30))


def test_records_that_a_loop_did_not_live_to_send_are_told(
    session_broker: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    deliveries = []

    async def run() -> None:
        producer = AsyncProducer({"bootstrap.servers": session_broker.bootstrap_servers, "linger.ms": 60_000})
        deliveries.extend([await producer.send(name, b"%d" % number) for number in range(7)])
        kept.append(producer)

    kept: list[AsyncProducer] = []
    with caplog.at_level(logging.WARNING, "semel"):
        asyncio.run(run())
    assert "7 records were not sent" in caplog.text
    assert isinstance(deliveries[0].exception(5), ClientClosed)
    with pytest.warns(ResourceWarning):
        drop(kept)


def test_a_record_that_a_close_failed_does_not_say_try_again(
    session_broker: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    silent = threading.Event()

    def rule(passing: Passing) -> Mute | None:
        return Mute() if silent.is_set() and passing.api_key == ApiKey.PRODUCE else None

    with FaultProxy(session_broker.bootstrap_servers, rule) as proxy:
        producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "linger.ms": 0})
        producer.send(name, b"first").result(30)
        silent.set()
        sent = producer.send(name, b"sent")
        until(lambda: proxy.faults, what="the request to be on its way")
        waiting = [producer.send(name, b"w" * 10_000) for _ in range(30)]
        with caplog.at_level(logging.WARNING, "semel"):
            producer.close(timeout_ms=50)
    errors = [delivery.exception(5) for delivery in (sent, waiting[-1])]
    for error in errors:
        assert isinstance(error, ClientClosed)
        assert not error.code.retriable
        assert "try again" not in str(error).lower()
    assert "may have been written or not" in str(errors[0])
    assert "it was not written" in str(errors[1])
    assert errors[1].code is ErrorCode.OPERATION_NOT_ATTEMPTED  # type: ignore[union-attr]
    assert "records were not sent" in caplog.text


def test_a_producer_that_is_dropped_in_the_midst_of_a_transaction_aborts_it(session_broker: Broker, name: str) -> None:
    config = {"bootstrap.servers": session_broker.bootstrap_servers}
    kept = [Producer({**config, "transactional.id": name, "semel.exit.timeout.ms": 60_000})]
    kept[0].init_transactions()
    kept[0].begin_transaction()
    kept[0].send(name, b"never").result(30)
    with pytest.warns(ResourceWarning):
        drop(kept)
    with Admin(config) as admin:
        until(lambda: admin.describe_transactions([name])[name].state == "CompleteAbort", what="the transaction to end")


def test_the_end_of_a_forked_process_leaves_the_clients_of_its_parent_alone(session_broker: Broker, name: str) -> None:
    source = """
        import os, sys, semel
        producer = semel.Producer({"bootstrap.servers": sys.argv[1], "linger.ms": 300})
        producer.send(sys.argv[2], b"before").result(30)
        waiting = producer.send(sys.argv[2], b"waiting")
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        waiting.result(30)
        producer.send(sys.argv[2], b"after").result(30)
        producer.close()
    """
    with program(source, session_broker.bootstrap_servers, name) as ended:
        assert ended.wait() == 0, ended.output()
        assert ended.output() == ""
    assert end_offset(session_broker.bootstrap_servers, name) == 3


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_a_child_of_multiprocessing_that_ends_without_close_delivers_what_it_sent(
    session_broker: Broker, name: str, tmp_path: Path, way: str
) -> None:
    source = """
        import multiprocessing, sys, threading, semel

        kept = []

        def work(address, topic):
            settings = {"bootstrap.servers": address, "linger.ms": 100, "semel.exit.timeout.ms": 60_000}
            producer = semel.Producer(settings)
            for number in range(100):
                producer.send(topic, b"%d" % number)
            kept.append(producer)
            dropped = semel.Producer(settings)
            for number in range(100):
                dropped.send(topic, b"%d" % number)
            late = threading.Timer(0.3, producer.send, (topic, b"from a thread that goes on"))
            late.start()

        if __name__ == "__main__":
            child = multiprocessing.get_context(sys.argv[3]).Process(target=work, args=sys.argv[1:3])
            child.start()
            child.join()
            sys.exit(child.exitcode)
    """
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(source))
    command = [sys.executable, str(file), session_broker.bootstrap_servers, name, way]
    with Process(command, name="program", environment=ENVIRONMENT) as ended:
        assert ended.wait() == 0, ended.output()
        lines = ended.output().splitlines()
        assert [line for line in lines if "was dropped without being closed" not in line] == []
    assert end_offset(session_broker.bootstrap_servers, name) == 201
