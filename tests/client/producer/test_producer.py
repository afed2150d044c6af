"""The producer against real brokers: order, transactions, fencing, faults on the way."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

from semel import Admin, Broker, Consumer, Producer
from semel.client.cluster.cluster import Cluster
from semel.client.producer.producer import AsyncProducer
from semel.client.producer.send_loop import SendLoop
from semel.config import ConfigError
from semel.errors import (
    AbortTransaction,
    AuthorizationFailed,
    CommitFailed,
    ErrorCode,
    KafkaError,
    Misuse,
    ProducerFenced,
    RecordTooLarge,
    RequestTimedOut,
    UnsupportedVersion,
    error_for,
)
from semel.machines.producing.sender import Sender
from semel.machines.transactions.producer import GroupMetadata, ProducerState
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.testing.fault_proxy import Cut, FaultProxy, Mute, Passing, Way, every, nth_only
from semel.testing.history import Ended, Ending, Outcome
from semel.wire.apis import ApiKey
from semel.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from tests.client.witness import Witness
from tests.support.waiting import until

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def read(
    bootstrap: str, topic: str, count: int, isolation: str = "read_committed", partitions: int = 1
) -> list[object]:
    """The first `count` records of a topic, and proof that there are no more."""
    config = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "isolation.level": isolation}
    found: list[object] = []
    with Consumer(config) as consumer:
        wanted = [(topic, number) for number in range(partitions)]
        consumer.assign(wanted)
        ends = consumer.end_offsets(wanted)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found += consumer.poll(timeout_ms=1_000)
    assert len(found) == count
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_as_they_were_sent(bootstrap: str, name: str, codec: str) -> None:
    with Producer({"bootstrap.servers": bootstrap, "compression.type": codec}) as producer:
        first = producer.send(name, "text", key="k", headers={"h": b"1", "n": None}, timestamp_ms=1_700_000_000_123)
        second = producer.send(name, None, key=b"\x00")
        assert (first.result(30).offset, second.result(30).offset) == (0, 1)
    one, two = read(bootstrap, name, 2)
    assert (one.key, one.value, one.timestamp_ms) == (b"k", b"text", 1_700_000_000_123)
    assert one.headers == (("h", b"1"), ("n", None))
    assert (two.key, two.value, two.headers) == (b"\x00", None, ())


@pytest.mark.parametrize(
    ("codec", "quick", "thorough"), [("gzip", 1, 9), ("lz4", 9, 17), ("zstd", -5, 19)], ids=["gzip", "lz4", "zstd"]
)
@pytest.mark.parametrize("way", ["records", "arrow"])
def test_a_producer_compresses_as_hard_as_it_is_told(
    session_broker: Broker, name: str, codec: str, quick: int, thorough: int, way: str
) -> None:
    value = b" ".join(b"%d shillings and %d pence" % (n * n % 97, n % 12) for n in range(4000))
    sizes = []
    for level in (quick, thorough):
        config = {"bootstrap.servers": session_broker.bootstrap_servers, "compression.type": codec}
        with Producer({**config, f"compression.{codec}.level": level}) as producer:
            if way == "arrow":
                producer.send_arrow(f"{name}{level}", pa.table({"value": [value]})).result(30)
            else:
                producer.send(f"{name}{level}", value).result(30)
        assert [record.value for record in read(session_broker.bootstrap_servers, f"{name}{level}", 1)] == [value]
        sizes.append(session_broker.server.topics.topics[f"{name}{level}"].partitions[0].log.size_bytes)
    assert sizes[1] < sizes[0]


def test_many_records_keep_their_order(bootstrap: str, name: str) -> None:
    with Producer({"bootstrap.servers": bootstrap, "batch.size": 2_000}) as producer:
        deliveries = [producer.send(name, b"%d" % number) for number in range(5_000)]
        producer.flush()
        assert [delivery.result().offset for delivery in deliveries] == list(range(5_000))
    assert [record.value for record in read(bootstrap, name, 5_000)] == [b"%d" % number for number in range(5_000)]


def test_equal_keys_meet_in_one_partition_and_a_given_partition_is_obeyed(bootstrap: str, name: str) -> None:
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topic(name, partitions=5)
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        keyed = [producer.send(name, "v", key=f"key-{number % 7}").result(30) for number in range(21)]
        assert len({(n % 7, metadata.partition) for n, metadata in enumerate(keyed)}) == 7
        assert producer.send(name, "v", key="key-0", partition=4).result(30).partition == 4
        with pytest.raises(Misuse, match="partitions 0 to 4, not 5"):
            producer.send(name, "v", partition=5)


def test_a_transaction_is_seen_whole_or_not_at_all(bootstrap: str, name: str) -> None:
    topics = [f"{name}-a", f"{name}-b"]
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": name}) as producer:
        producer.init_transactions()
        with producer.transaction():
            for topic in topics:
                producer.send(topic, "committed")
        with pytest.raises(ZeroDivisionError), producer.transaction():
            for topic in topics:
                producer.send(topic, "aborted").result(30)
            raise ZeroDivisionError
        with producer.transaction():
            for topic in topics:
                producer.send(topic, "committed too")
        epoch = producer.identity.producer_epoch  # type: ignore[union-attr]
    assert epoch == 3, "under V2 every transaction has an epoch of its own"
    for topic in topics:
        assert [record.value for record in read(bootstrap, topic, 2)] == [b"committed", b"committed too"]
        assert len(read(bootstrap, topic, 3, "read_uncommitted")) == 3


def test_the_old_protocol_works_too(bootstrap: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "transaction_version", property(lambda self: 1))
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": name}) as producer:
        producer.init_transactions()
        for number in range(3):
            with producer.transaction():
                producer.send(name, b"%d" % number)
                producer.send_offsets_to_transaction({(name, 0): number}, f"{name}-group")
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(name, "aborted").result(30)
            raise ZeroDivisionError
        assert producer.identity.producer_epoch == 0  # type: ignore[union-attr]
        with producer.transaction():
            producer.send(name, b"3")
    assert [record.value for record in read(bootstrap, name, 4)] == [b"0", b"1", b"2", b"3"]
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        assert [o.offset for o in admin.list_group_offsets(f"{name}-group").values()] == [2]


@pytest.mark.parametrize(("version", "wanted"), [(1, {0: 11, 26: 4, 28: 4}), (2, {0: 12, 26: 5, 28: 5})])
def test_each_protocol_speaks_its_own_versions(
    bootstrap: str, name: str, version: int, wanted: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "transaction_version", property(lambda self: version))
    heard: dict[int, int] = {}

    def listen(passing: Passing) -> None:
        heard[passing.api_key] = passing.api_version

    with (
        FaultProxy(bootstrap, listen) as proxy,
        Producer({"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": name}) as producer,
    ):
        producer.init_transactions()
        with producer.transaction():
            producer.send(name, "x")
            producer.send_offsets_to_transaction({(name, 0): 1}, name)
    assert {key: heard[key] for key in wanted} == wanted
    assert (ApiKey.ADD_PARTITIONS_TO_TXN in heard, ApiKey.ADD_OFFSETS_TO_TXN in heard) == (version == 1, version == 1)


@pytest.mark.parametrize("version", [1, 2])
def test_a_zombie_cannot_commit_what_its_successor_aborted(
    bootstrap: str, name: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "transaction_version", property(lambda self: version))
    config = {"bootstrap.servers": bootstrap, "transactional.id": name}
    with Producer(config) as zombie, Producer(config) as successor:
        zombie.init_transactions()
        zombie.begin_transaction()
        zombie.send(name, "paid twice").result(30)
        successor.init_transactions()
        with pytest.raises(ProducerFenced):
            zombie.commit_transaction()
        with successor.transaction():
            successor.send(name, "paid once")
        with pytest.raises(ProducerFenced):
            zombie.begin_transaction()
    assert [record.value for record in read(bootstrap, name, 1)] == [b"paid once"]


def test_offsets_of_a_transaction_count_when_it_commits_and_never_when_it_aborts(bootstrap: str, name: str) -> None:
    group = f"{name}-group"
    with (
        Producer({"bootstrap.servers": bootstrap, "transactional.id": name}) as producer,
        Admin({"bootstrap.servers": bootstrap}) as admin,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, "in").result(30)
        producer.send_offsets_to_transaction({(name, 0): 1}, group)
        producer.abort_transaction()
        assert admin.list_group_offsets(group, [(name, 0)], require_stable=True) == {}
        with producer.transaction():
            producer.send(name, "in")
            producer.send_offsets_to_transaction({(name, 0): 2}, group)
        offsets = admin.list_group_offsets(group, [(name, 0)], require_stable=True)
        assert [given.offset for given in offsets.values()] == [2]


def test_a_member_the_group_has_moved_on_from_cannot_commit_in_a_transaction(bootstrap: str, name: str) -> None:
    config = {"bootstrap.servers": bootstrap, "transactional.id": name}
    reader = {"bootstrap.servers": bootstrap, "group.id": f"{name}-group", "auto.offset.reset": "earliest"}
    with Producer(config) as producer, Consumer(reader) as consumer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(name, "in")
        consumer.subscribe(name)
        assert consumer.poll(20_000)
        current = consumer.group_metadata()
        stale = GroupMetadata(current.group_id, current.generation_id - 1, current.member_id)
        producer.begin_transaction()
        with pytest.raises(CommitFailed):
            producer.send_offsets_to_transaction({(name, 0): 1}, stale)
        with pytest.raises(AbortTransaction):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send_offsets_to_transaction({(name, 0): 1}, consumer.group_metadata())


@pytest.mark.semel(**{"transaction.two.phase.commit.enable": True})
@pytest.mark.parametrize("decide", [True, False])
def test_a_prepared_transaction_outlives_its_producer_and_is_decided_by_another(
    semel_broker: Broker, name: str, decide: bool
) -> None:
    address = semel_broker.bootstrap_servers
    config = {"bootstrap.servers": address, "transactional.id": name, "transaction.two.phase.commit.enable": True}
    with Producer(config) as first:
        assert first.init_transactions(keep_prepared=True) is None
        first.begin_transaction()
        first.send(name, "prepared")
        written_down = first.prepare_transaction()
        first.close(timeout_ms=0)
    with Producer(config) as second:
        assert second.init_transactions(keep_prepared=True) == written_down
        earlier = ProducerIdentity(written_down.producer_id, written_down.producer_epoch - 1)
        second.complete_transaction(written_down if decide else earlier)
        with second.transaction():
            second.send(name, "after")
    expected = [b"prepared", b"after"] if decide else [b"after"]
    assert [record.value for record in read(address, name, len(expected))] == expected


def test_two_phases_are_refused_where_the_broker_does_not_serve_them(bootstrap: str, name: str) -> None:
    config = {"bootstrap.servers": bootstrap, "transactional.id": name, "transaction.two.phase.commit.enable": True}
    with Producer(config) as producer, pytest.raises(UnsupportedVersion, match="InitProducerId version 6"):
        producer.init_transactions()


@pytest.mark.parametrize("transactional", [True, False])
def test_a_producer_that_is_refused_an_identity_says_so_and_goes_on_once_it_is_allowed(
    session_broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    request = Cluster.request
    allowed = threading.Event()

    async def guarded(self: Cluster, to: Any, message: Any, **options: Any) -> Any:
        if isinstance(message, InitProducerIdRequest) and not allowed.is_set():
            return InitProducerIdResponse(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        return await request(self, to, message, **options)

    monkeypatch.setattr(Cluster, "request", guarded)
    config = {"bootstrap.servers": session_broker.bootstrap_servers}
    with Producer({**config, "transactional.id": name} if transactional else config) as producer:
        for _ in range(2):
            with pytest.raises(AuthorizationFailed, match="not allowed on this cluster"):
                producer.init_transactions() if transactional else producer.send(name, "not yet").result(30)
        allowed.set()
        if transactional:
            producer.init_transactions()
            producer.begin_transaction()
        assert producer.send(name, "now").result(30).offset == 0
        if transactional:
            producer.commit_transaction()


def test_a_commit_waits_for_records_and_coordinator_together_no_longer_than_max_block_ms(
    session_broker: Broker, name: str
) -> None:
    silent = threading.Event()

    def rule(passing: Passing) -> Mute | None:
        return Mute() if silent.is_set() and passing.api_key == ApiKey.PRODUCE else None

    with FaultProxy(session_broker.bootstrap_servers, rule) as proxy:
        config = {"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": name, "max.block.ms": 2_000}
        with Producer(config) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(name, "x").result(30)
            silent.set()
            producer.send(name, "y")
            began = time.monotonic()
            with pytest.raises(RequestTimedOut, match=r"flush\(\) did not finish within timeout_ms=100"):
                producer.flush(timeout_ms=100)
            with pytest.raises(
                RequestTimedOut, match=r"commit_transaction\(\) did not finish within max\.block\.ms=2000"
            ):
                producer.commit_transaction()
            assert time.monotonic() - began < 10, "and not delivery.timeout.ms"
            producer.close(timeout_ms=0)


def test_an_empty_transaction_commits_cleanly(bootstrap: str, name: str) -> None:
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": name}) as producer:
        producer.init_transactions()
        for _ in range(3):
            with producer.transaction():
                pass
        with producer.transaction():
            producer.send(name, "not empty")
    read(bootstrap, name, 1)


def test_calls_out_of_order_say_what_to_do_first(bootstrap: str, name: str) -> None:
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": name}) as producer:
        with pytest.raises(Misuse, match=r"call init_transactions\(\) first"):
            producer.begin_transaction()
        producer.init_transactions()
        with pytest.raises(Misuse, match=r"call begin_transaction\(\) first"):
            producer.commit_transaction()
        with pytest.raises(Misuse, match=r"call begin_transaction\(\) first"):
            producer.send(name, "outside of a transaction")
    with Producer({"bootstrap.servers": bootstrap}) as plain, pytest.raises(Misuse, match=r"transactional\.id"):
        plain.begin_transaction()


def test_a_table_goes_out_by_key_and_comes_back_as_columns(bootstrap: str, name: str) -> None:
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topic(name, partitions=3)
    rows = 10_000
    table = pa.table({"key": [b"%d" % (n % 100) for n in range(rows)], "value": [b"%d" % n for n in range(rows)]})
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "compression.type": "lz4"}) as producer:
        producer.init_transactions()
        with producer.transaction():
            delivery = producer.send_arrow(name, table)
        assert delivery.record_count == rows
        assert delivery.done()
        one = producer.send  # the table's partitions are those of single records
        with producer.transaction():
            partition = one(name, "same place", key="42").result(30).partition
    found = []
    with Consumer({"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([(name, number) for number in range(3)])
        while sum(part.num_rows for part in found) < rows + 1:
            found.append(consumer.poll_arrow(timeout_ms=10_000))
    back = pa.concat_tables(found)
    assert sorted(int(v) for v in back["value"].to_pylist() if v != b"same place") == list(range(rows))
    of_42 = back.filter(pa.compute.equal(back["key"], b"42"))
    assert set(of_42["partition"].to_pylist()) == {partition}
    assert of_42["value"].to_pylist() == [b"%d" % n for n in range(42, rows, 100)] + [b"same place"]


def test_a_batch_too_large_for_its_topic_is_split_and_a_record_too_large_is_refused(bootstrap: str, name: str) -> None:
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topic(name, partitions=1, configs={"max.message.bytes": 2_000})
    with Producer({"bootstrap.servers": bootstrap, "batch.size": 20_000, "linger.ms": 100}) as producer:
        deliveries = [producer.send(name, b"%04d" % number * 20) for number in range(100)]
        assert [delivery.result(30).offset for delivery in deliveries] == list(range(100))
        with pytest.raises(RecordTooLarge):
            producer.send(name, b"x" * 3_000).result(30)
        assert producer.send(name, "still works").result(30).offset == 100
    read(bootstrap, name, 101)


def test_offsets_whose_answer_never_came_do_not_count_with_the_next_transaction(bootstrap: str, name: str) -> None:
    group = f"{name}-group"
    config = {"max.block.ms": 700, "request.timeout.ms": 60_000, "linger.ms": 0}
    with (
        FaultProxy(bootstrap, nth_only(1, ApiKey.TXN_OFFSET_COMMIT, Mute())) as proxy,
        Admin({"bootstrap.servers": bootstrap}) as admin,
        Producer({"bootstrap.servers": bootstrap}) as plain,
    ):
        plain.send(name, "to read").result(30)
        with Producer({"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": name, **config}) as producer:
            within(producer.init_transactions)
            producer.begin_transaction()
            with pytest.raises(RequestTimedOut):
                within(
                    lambda: producer.send_offsets_to_transaction({(name, 0): 1}, group), reached=lambda: proxy.faults
                )
            proxy.cut_all()
            within(producer.abort_transaction)
            producer.begin_transaction()
            within(lambda: producer.send(name, "out"))
            within(producer.commit_transaction)
        assert admin.list_group_offsets(group, [(name, 0)], require_stable=True) == {}


def test_a_commit_that_takes_too_long_says_so_and_is_waited_for_again(session_broker: Broker, name: str) -> None:
    """And is not answered by an abort, which could not be done any more."""
    with FaultProxy(session_broker.bootstrap_servers, nth_only(1, ApiKey.END_TXN, Mute())) as proxy:
        config = {"max.block.ms": 500, "request.timeout.ms": 2_000, "delivery.timeout.ms": 5_000}
        with Producer({"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": name, **config}) as producer:
            within(producer.init_transactions)
            again = r"call commit_transaction\(\) again"
            with pytest.raises(RequestTimedOut, match=again), producer.transaction():
                within(lambda: producer.send(name, "slow"))
            assert proxy.faults
            within(producer.commit_transaction)
    assert [record.value for record in read(session_broker.bootstrap_servers, name, 1)] == [b"slow"]


def test_a_call_that_was_cancelled_and_has_ended_meanwhile_can_be_made_again(
    session_broker: Broker, name: str
) -> None:
    async def cancelled(producer: AsyncProducer, call: Callable[[], Awaitable[object]]) -> None:
        """Begin a call, cancel it while it waits for the broker, and let it end by itself."""
        before, task = producer.state, asyncio.ensure_future(call())
        for _ in range(1_000):
            await asyncio.sleep(0)
            if producer.state is not before:
                break
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(until, lambda: producer.state is ProducerState.READY)

    async def run() -> None:
        settings = {"bootstrap.servers": session_broker.bootstrap_servers, "transactional.id": name}
        async with AsyncProducer(settings) as producer, asyncio.timeout(60):
            await cancelled(producer, producer.init_transactions)
            await producer.init_transactions()
            for value, end in ((b"no", producer.abort_transaction), (b"yes", producer.commit_transaction)):
                await producer.begin_transaction()
                await (await producer.send(name, value))
                await cancelled(producer, end)
                await end()
                with pytest.raises(Misuse, match="call begin_transaction"):
                    await end()  # it was told once how it ended

    asyncio.run(run())
    assert [record.value for record in read(session_broker.bootstrap_servers, name, 1)] == [b"yes"]  # type: ignore[attr-defined]


def test_an_abort_that_fails_does_not_hide_why_there_was_one(session_broker: Broker, name: str) -> None:
    with FaultProxy(session_broker.bootstrap_servers, every(1, ApiKey.END_TXN, Mute())) as proxy:
        config = {"max.block.ms": 500, "request.timeout.ms": 60_000, "delivery.timeout.ms": 61_000}
        with Producer({"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": name, **config}) as producer:
            within(producer.init_transactions)
            with pytest.raises(ZeroDivisionError) as raised, producer.transaction():
                within(lambda: producer.send(name, "x").result(30))
                raise ZeroDivisionError
            assert "the abort failed too" in raised.value.__notes__[0]
            producer.close(timeout_ms=0)


def within(call: Callable[[], object], reached: Callable[[], object] = lambda: False) -> None:
    """Call again while a short max.block.ms ends it early, until `reached` says that this was wanted."""
    while True:
        try:
            call()
            return
        except RequestTimedOut:
            if reached():
                raise


@pytest.mark.parametrize("fault", [Cut(), Mute()])
def test_lost_answers_make_no_duplicate_and_no_gap(bootstrap: str, name: str, fault: Cut | Mute) -> None:
    config = {"linger.ms": 1, "batch.size": 500, "request.timeout.ms": 700, "delivery.timeout.ms": 50_000}
    nth = 7 if isinstance(fault, Cut) else 40
    with FaultProxy(bootstrap, every(nth, ApiKey.PRODUCE, fault)) as proxy:
        with Producer({"bootstrap.servers": proxy.bootstrap_servers, **config}) as producer:
            deliveries = [producer.send(name, b"%d" % number) for number in range(3_000)]
            producer.flush()
        assert proxy.faults
    witness = Witness()
    for number, delivery in enumerate(deliveries):
        witness.sent(name, b"%d" % number, delivery.result().offset)
    assert witness.read_to_the_end(bootstrap, name) == [[b"%d" % number for number in range(3_000)]]
    witness.assert_lawful()


@pytest.mark.parametrize("api", [ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID, ApiKey.TXN_OFFSET_COMMIT, ApiKey.PRODUCE])
@pytest.mark.parametrize("way", list(Way))
def test_a_transaction_survives_the_loss_of_any_message(bootstrap: str, name: str, api: ApiKey, way: Way) -> None:
    witness = Witness()
    with FaultProxy(bootstrap, nth_only(1, api, Cut(), way=way)) as proxy:
        with Producer({"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": name}) as producer:
            producer.init_transactions()
            for number in range(3):
                with producer.transaction():
                    witness.sent(name, b"%d" % number, transaction=number)
                    producer.send(name, b"%d" % number)
                    producer.send_offsets_to_transaction({(name, 0): number}, f"{name}-group")
                    witness.history.append(Ending("producer", number))
                witness.history.append(Ended("producer", number, Outcome.OK))
        assert proxy.faults["Cut"] == 1
    assert witness.read_to_the_end(bootstrap, name) == [[b"0", b"1", b"2"]]
    witness.assert_lawful()
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        assert [o.offset for o in admin.list_group_offsets(f"{name}-group", require_stable=True).values()] == [2]


def test_asyncio_code_awaits_deliveries(bootstrap: str, name: str) -> None:
    async def send() -> list[int]:
        async with AsyncProducer({"bootstrap.servers": bootstrap, "transactional.id": name}) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                deliveries = [await producer.send(name, b"%d" % number) for number in range(10)]
            return [(await delivery).offset for delivery in deliveries]

    assert asyncio.run(send()) == list(range(10))


def test_a_callback_hears_of_the_delivery(session_broker: Broker, name: str) -> None:
    heard: list[int] = []
    with Producer({"bootstrap.servers": session_broker.bootstrap_servers}) as producer:
        delivery = producer.send(name, "x")
        delivery.add_done_callback(lambda d: heard.append(d.result().offset))
        delivery.result(30)
        producer.flush()
    assert heard == [0]


def test_a_callback_that_fails_does_not_stop_the_sending(session_broker: Broker, name: str) -> None:
    with Producer({"bootstrap.servers": session_broker.bootstrap_servers}) as producer:
        delivery = producer.send(name, "x")
        delivery.add_done_callback(lambda d: 1 // 0)
        delivery.result(30)
        assert producer.send(name, "y").result(30).offset == 1


def test_a_callback_that_would_wait_for_its_own_producer_is_told_so(session_broker: Broker, name: str) -> None:
    """Each of these calls would wait for the thread it is in: nothing would be sent any more."""
    told: list[str] = []

    def heard(producer: Producer, call: Callable[[], object], done: threading.Event) -> None:
        try:
            call()
        except Misuse as misuse:
            told.append(misuse.why)
        finally:
            done.set()

    with Producer({"bootstrap.servers": session_broker.bootstrap_servers}) as producer:
        calls: list[Callable[[], object]] = [
            lambda: producer.send(name, "y").result(),
            lambda: producer.send(name, "y").exception(5),
            lambda: producer.send(f"{name}-new", "y"),
            producer.flush,
            producer.close,
        ]
        for call in calls:
            done = threading.Event()
            producer.send(name, "x").add_done_callback(lambda _, c=call, d=done: heard(producer, c, d))
            assert done.wait(20), "the producer waits for itself"
        assert producer.send(name, "z").result(30).offset == len(calls) + 2
    assert ["would wait for itself" in why for why in told] == [True] * len(calls)


def test_a_result_is_not_waited_for_on_the_loop_that_sends(session_broker: Broker, name: str) -> None:
    async def send() -> None:
        async with AsyncProducer({"bootstrap.servers": session_broker.bootstrap_servers}) as producer:
            delivery = await producer.send(name, "x")
            with pytest.raises(Misuse, match="await the delivery"):
                delivery.result()
            with pytest.raises(Misuse, match="await the delivery"):
                (await producer.send_arrow(name, pa.table({"value": ["y"]}))).result(30)
            await producer.flush()
            assert delivery.result().offset == 0

    asyncio.run(send())


def test_somebody_who_waited_on_a_loop_that_is_gone_does_not_stop_the_sending(
    session_broker: Broker, name: str
) -> None:
    with Producer({"bootstrap.servers": session_broker.bootstrap_servers, "linger.ms": 300}) as producer:
        producer.send(name, "x").result(30)
        delivery = producer.send(name, "y")

        async def impatient() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(delivery, 0.01)

        asyncio.run(impatient())
        assert delivery.result(30).offset == 1
        assert producer.send(name, "z").result(30).offset == 2


@pytest.mark.parametrize(("place", "step"), [(Sender, "poll"), (SendLoop, "_message")])
def test_whoever_waits_hears_of_an_error_nobody_foresaw(
    session_broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch, place: type, step: str
) -> None:
    with Producer({"bootstrap.servers": session_broker.bootstrap_servers}) as producer:
        producer.send(name, "x").result(30)

        def broken(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(place, step, broken)
        with pytest.raises(KafkaError, match="ZeroDivisionError"):
            producer.send(name, "y").result(30)
        with pytest.raises(ZeroDivisionError):
            until(lambda: producer.send(name, "z") and False, what="the producer to say that it ended")


def test_partitions_added_to_a_topic_are_used(bootstrap: str, name: str) -> None:
    config = {"bootstrap.servers": bootstrap, "metadata.max.age.ms": 200, "batch.size": 1}
    with Admin({"bootstrap.servers": bootstrap}) as admin, Producer({"bootstrap.servers": bootstrap}) as patient:
        admin.create_topic(name, 1)
        patient.send(name, "x").result(30)
        with Producer(config) as producer:
            producer.send(name, "x").result(30)
            admin.create_partitions({name: 2})

            def told_or_found() -> int:
                try:
                    return patient.send(name, "y", partition=1).result(30).partition
                except Misuse:
                    return 0  # another broker's metadata may be a moment behind

            assert until(told_or_found, what="the partition that was asked for by its number") == 1
            with pytest.raises(Misuse, match="partitions 0 to 1, not 2"):
                patient.send(name, "z", partition=2)
            until(lambda: producer.send(name, "z").result(30).partition == 1, what="a record in the new partition")


def test_a_topic_that_may_not_be_written_does_not_fail_the_records_of_another(
    session_broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh = Cluster.refresh_metadata

    async def guarded(self: Cluster, topics: Iterable[str] | None, **options: Any) -> None:
        if topics is not None and f"{name}-secret" in topics:
            raise error_for(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not yours")
        await refresh(self, topics, **options)

    async def run() -> None:
        async with AsyncProducer({"bootstrap.servers": session_broker.bootstrap_servers}) as producer:
            topics = (name, f"{name}-secret")
            for topic in topics:
                await (await producer.send(topic, "x"))
            monkeypatch.setattr(Cluster, "refresh_metadata", guarded)
            producer._sender.stale_leaders.update(TopicPartition(topic, 0) for topic in topics)
            good, bad = [await producer.send(topic, "y") for topic in topics]
            assert (await good).offset == 1
            with pytest.raises(AuthorizationFailed, match="not yours"):
                await bad

    asyncio.run(run())


def test_brokers_that_cannot_be_reached_are_named_when_max_block_ms_has_passed(name: str) -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", "max.block.ms": 300}
    with Producer(config) as producer, pytest.raises(Exception, match=r"127\.0\.0\.1:1") as raised:
        producer.send(name, "nobody listens")
    assert "bootstrap.servers" in str(raised.value)
    with Producer({**config, "transactional.id": name}) as producer:
        with pytest.raises(RequestTimedOut, match=r"max\.block\.ms=300"):
            producer.init_transactions()
        producer.close(timeout_ms=0)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"enable.idempotence": True, "acks": "1"}, "acks=all"),
        ({"enable.idempotence": True, "max.in.flight.requests.per.connection": 6}, "at most 5"),
        ({"enable.idempotence": False, "transactional.id": "x"}, "enable.idempotence"),
        ({"delivery.timeout.ms": 10}, "request.timeout.ms"),
        ({"compression.typo": "lz4"}, "compression.type"),
    ],
)
def test_settings_that_contradict_each_other_are_named(config: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Producer({"bootstrap.servers": "127.0.0.1:1", **config})


def test_fewer_acknowledgements_mean_no_idempotence(session_broker: Broker, name: str) -> None:
    address = session_broker.bootstrap_servers
    for acks in ("0", "1"):
        with Producer({"bootstrap.servers": address, "acks": acks}) as producer:
            assert producer.identity is None
            offset = producer.send(name, acks).result(30).offset
            assert offset == (-1 if acks == "0" else 1)
