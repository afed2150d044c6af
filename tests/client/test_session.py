"""Read, transform, write, exactly once: the session, and what can happen to it."""

from __future__ import annotations

import pytest

from semel import Admin, Broker, Consumer, Producer
from semel.client.blocking.loop_thread import LoopThread
from semel.client.session import TransactSession
from semel.config import ConfigError
from semel.errors import CommitFailed, Disconnected, ErrorCode, Misuse, ProducerFenced, Retriable
from semel.testing.fault_proxy import Cut, FaultProxy, Passing
from semel.wire.apis import ApiKey
from tests.client.witness import Witness, originals
from tests.support.processes import BrokerProcess
from tests.support.waiting import until


def fill(bootstrap: str, topic: str, count: int, partitions: int = 2) -> None:
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topic(topic, partitions, if_not_exists=True)
        admin.create_topic(f"{topic}-out", partitions, if_not_exists=True)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % partitions)


def session(bootstrap: str, name: str, number: int = 1, **settings: object) -> TransactSession:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return TransactSession(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "transactional.id": f"{name}-{number}",
            "auto.offset.reset": "earliest",
            "max.poll.records": 20,
            "heartbeat.interval.ms": 100,
            **named,
        }
    )


def copy_once(copier: TransactSession, topic: str) -> int:
    """One transaction: its records to the same partitions of the output."""
    with copier.transaction(timeout_ms=200) as records:
        for record in records:
            copier.send(f"{topic}-out", record.value, partition=record.partition)
    return len(records)


def output(bootstrap: str, topic: str, partitions: int = 2) -> list[list[int]]:
    """What a read_committed reader finds, by partition."""
    wanted = [(f"{topic}-out", number) for number in range(partitions)]
    found: list[list[int]] = [[] for _ in wanted]
    with Consumer({"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(wanted)
        ends = consumer.end_offsets(wanted)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for record in consumer.poll(timeout_ms=1_000):
                found[record.partition].append(int(record.value or b""))
    return found


def expected(count: int, partitions: int = 2) -> list[list[int]]:
    return [list(range(number, count, partitions)) for number in range(partitions)]


def test_every_record_is_copied_once_and_in_order(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 200)
    with session(bootstrap, name) as copier:
        copier.subscribe(name)
        copied = 0

        def all_copied() -> bool:
            nonlocal copied
            copied += copy_once(copier, name)
            return copied >= 200

        until(all_copied, what="200 records", every_s=0)
    assert output(bootstrap, name) == expected(200)


def test_a_batch_whose_block_raises_comes_again(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 10, partitions=1)
    seen: list[int] = []
    with session(bootstrap, name) as copier:
        copier.subscribe(name)

        def failed() -> bool:
            try:
                with copier.transaction(timeout_ms=200) as records:
                    for record in records:
                        copier.send(f"{name}-out", record.value, partition=0)
                        seen.append(int(record.value or b""))
                    if records:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                return True
            return False

        until(failed, what="the first batch")
        assert copier.aborted == 1
        until(lambda: copy_once(copier, name), what="the batch again")
    assert seen == list(range(10))
    assert output(bootstrap, name, 1) == expected(10, 1)


def test_a_session_whose_partitions_went_to_another_cannot_commit(bootstrap: str, name: str) -> None:
    fill(bootstrap, name, 20, partitions=1)
    with session(bootstrap, name, 1, max_poll_interval_ms=400) as slow, session(bootstrap, name, 2) as quick:
        slow.subscribe(name)
        taken: list[object] = []

        def overslept() -> bool:
            with slow.transaction(timeout_ms=200) as records:
                for record in records:
                    slow.send(f"{name}-out", record.value, partition=0)
                taken.extend(records)
                if records:
                    quick.subscribe(name)
                    until(lambda: copy_once(quick, name), what="the other session to take over")
            return bool(records)

        until(overslept, what="records")
        assert slow.aborted == 1
        until(lambda: copy_once(quick, name) == 0, what="the end")
    assert taken
    assert output(bootstrap, name, 1) == expected(20, 1)


def test_a_second_session_with_the_same_id_ends_the_first(session_broker: Broker, name: str) -> None:
    bootstrap = session_broker.bootstrap_servers
    fill(bootstrap, name, 5, partitions=1)
    with session(bootstrap, name) as first, session(bootstrap, name) as second:
        first.subscribe(name)
        with pytest.raises(ProducerFenced), first.transaction(timeout_ms=20_000) as records:
            assert records
            first.send(f"{name}-out", "zombie", partition=0)
            second.subscribe(name)
            with second.transaction(timeout_ms=0):
                pass
    assert output(bootstrap, name, 1) == [[]]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"group_id": None}, "group.id"),
        ({"enable_auto_commit": True}, "enable.auto.commit"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_settings_that_would_break_exactly_once_are_refused(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        session("127.0.0.1:1", "x", **settings)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [row.getMessage() for row in caplog.records if row.name == "semel.client.session"]


def test_an_error_of_something_else_is_raised_though_it_says_try_again(
    bootstrap: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(bootstrap, name, 5, partitions=1)
    with session(bootstrap, name) as copier:
        copier.subscribe(name)
        for kind in (Disconnected, CommitFailed, OSError):
            error = kind(ErrorCode.NETWORK_EXCEPTION, "another client's")
            with pytest.raises(kind, match="another client's"):
                until(lambda error=error: fails(copier, name, error), what="records")
        assert copier.aborted == 3
        until(lambda: copy_once(copier, name), what="the batch again")
        assert copier.aborted == 3
        assert warnings_of(caplog) == []
    # Apache Kafka answers a commit before its markers are written.
    until(lambda: output(bootstrap, name, 1) == expected(5, 1), what="the copies")


def fails(copier: TransactSession, topic: str, error: Exception) -> bool:
    with copier.transaction(timeout_ms=200) as records:
        for record in records:
            copier.send(f"{topic}-out", record.value, partition=0)
        if records:
            raise error
    return False


@pytest.mark.semel(**{"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"})
def test_a_transaction_that_keeps_failing_is_told_of_once_and_raised_in_the_end(
    semel_broker: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bootstrap = semel_broker.bootstrap_servers
    fill(bootstrap, name, 3, partitions=1)
    config = {"bootstrap.servers": bootstrap, "group.id": name, "transactional.id": name, "max.block.ms": 200}
    config |= {"auto.offset.reset": "earliest", "retry.backoff.max.ms": 20, "retry.backoff.ms": 10}
    with TransactSession(config, retry_timeout_ms=1_000) as copier:
        copier.subscribe(name)

        def to_nowhere() -> bool:
            with copier.transaction(timeout_ms=200) as records:
                for record in records:
                    copier.send(f"{name}-missing", record.value)
            return False

        with pytest.raises(Retriable) as raised:
            until(to_nowhere, what="the end of patience", every_s=0)
        assert copier.aborted > 1
        assert "retry_timeout_ms=1000" in " ".join(raised.value.__notes__)
        assert [name in text and "failed" in text for text in warnings_of(caplog)] == [True]
        caplog.clear()
        aborted = copier.aborted
        until(lambda: to_nowhere() or copier.aborted > aborted, what="one more that fails")
        until(lambda: copy_once(copier, name), what="the batch again")
        assert ["failed" in text for text in warnings_of(caplog)] == [True, True], (
            "one when it begins, one when it ends"
        )
        assert "committed again, after 1" in warnings_of(caplog)[1]


def test_blocks_do_not_nest_and_sending_needs_records(session_broker: Broker, name: str) -> None:
    bootstrap = session_broker.bootstrap_servers
    fill(bootstrap, name, 3, partitions=1)
    with session(bootstrap, name) as copier:
        copier.subscribe(name)
        with copier.transaction(timeout_ms=0) as none:
            assert none == []
            with pytest.raises(Misuse, match="otherwise no transaction is open"):
                copier.send(f"{name}-out", "too early")

        def nested() -> bool:
            with copier.transaction(timeout_ms=200) as records:
                with pytest.raises(Misuse, match="end the first block before the next one"), copier.transaction():
                    pass
                for record in records:
                    copier.send(f"{name}-out", record.value, partition=0)
            return bool(records)

        until(nested, what="records")
    assert output(bootstrap, name, 1) == expected(3, 1)


def test_records_whose_reader_was_interrupted_come_again(
    session_broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = session_broker.bootstrap_servers
    fill(bootstrap, name, 3, partitions=1)
    run = LoopThread.run

    def interrupted(self: LoopThread, work: object, **options: object) -> object:
        answer = run(self, work, **options)  # type: ignore[arg-type]
        if isinstance(answer, list) and answer:
            monkeypatch.undo()
            raise KeyboardInterrupt
        return answer

    with session(bootstrap, name) as copier:
        copier.subscribe(name)
        monkeypatch.setattr(LoopThread, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            until(lambda: copy_once(copier, name) and False, what="the interrupt")
        until(lambda: copy_once(copier, name), what="the records")
    assert output(bootstrap, name, 1) == expected(3, 1)


@pytest.mark.timeout(120)
def test_cut_connections_of_every_kind_change_nothing(bootstrap: str, name: str) -> None:
    count = 400
    fill(bootstrap, name, count)
    kinds = (
        ApiKey.PRODUCE,
        ApiKey.END_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.FETCH,
        ApiKey.OFFSET_FETCH,
        ApiKey.HEARTBEAT,
    )

    def cut_some(passing: Passing) -> Cut | None:
        return Cut() if passing.api_key in kinds and passing.count % 6 == 0 else None

    witness = Witness()
    with witness.reading(bootstrap, f"{name}-out", 2) as found, FaultProxy(bootstrap, cut_some) as proxy:
        with session(proxy.bootstrap_servers, name, retry_backoff_ms=5, reconnect_backoff_ms=5) as copier:
            copier.subscribe(name)
            copied = 0

            def all_copied() -> bool:
                nonlocal copied
                copied += witness.copied(copier, f"{name}-out")
                return copied >= count

            until(all_copied, what="all records", within_s=100, every_s=0)
        assert proxy.faults["Cut"] > 0
    witness.assert_lawful()
    assert originals(found) == expected(count)


@pytest.mark.timeout(180)
def test_a_broker_killed_again_and_again_loses_and_repeats_nothing(broker_process: BrokerProcess, name: str) -> None:
    count, rounds = 600, 4
    fill(broker_process.bootstrap_servers, name, count)
    witness = Witness()
    servers = broker_process.bootstrap_servers
    with (
        witness.reading(servers, f"{name}-out", 2) as found,
        session(servers, name, retry_backoff_ms=20, max_block_ms=60_000) as copier,
    ):
        copier.subscribe(name)
        copied = killed = 0

        def kill_now_and_then() -> None:
            nonlocal killed
            if copied >= killed * 100 and killed < rounds:
                killed += 1
                broker_process.kill9()
                broker_process.start()

        def all_copied() -> bool:
            nonlocal copied
            copied += witness.copied(copier, f"{name}-out", during=kill_now_and_then)
            return copied >= count

        until(all_copied, what="all records", within_s=150, every_s=0)
        assert killed == rounds
    witness.assert_lawful()
    assert originals(found) == expected(count)
