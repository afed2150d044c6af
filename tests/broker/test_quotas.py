"""Client quotas: kept as Kafka keeps them, and kept to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.broker.dispatch import Call
from semel.broker.embedded import Broker
from semel.broker.net.connection import ServerConnection
from semel.errors import ErrorCode
from semel.machines.security.principals import Principal
from semel.wire.messages.admin import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from semel.wire.messages.configs import AlterClientQuotasRequest, DescribeClientQuotasRequest
from semel.wire.messages.features import ApiVersionsRequest
from semel.wire.messages.metadata import MetadataRequest
from tests.broker.raw import Raw, batch, fetch_request, produce_request, values_of
from tests.support.processes import BrokerProcess
from tests.support.waiting import until

PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
WORK, MUTATION, CONNECTION = "request_percentage", "controller_mutation_rate", "connection_creation_rate"
EXACT, DEFAULT, SPECIFIED = 0, 1, 2

_Names = dict[str, str | None]


def entry(names: _Names, quotas: dict[str, float | None]) -> AlterClientQuotasRequest.EntryData:
    return AlterClientQuotasRequest.EntryData(
        entity=[
            AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name) for kind, name in names.items()
        ],
        ops=[
            AlterClientQuotasRequest.OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in quotas.items()
        ],
    )


def alter(raw: Raw, names: _Names, quotas: dict[str, float | None], *, validate_only: bool = False) -> int:
    """Change one entity's quotas; the code it was answered with."""
    asked = AlterClientQuotasRequest(entries=[entry(names, quotas)], validate_only=validate_only)
    (row,) = raw.ask(asked).entries
    assert (row.error_message is None) == (row.error_code == ErrorCode.NONE)
    assert {one.entity_type: one.entity_name for one in row.entity} == names
    code: int = row.error_code
    return code


def described(raw: Raw, *wanted: tuple[str, int, str | None], strict: bool = False) -> list[tuple[_Names, Any]]:
    components = [
        DescribeClientQuotasRequest.ComponentData(entity_type=kind, match_type=how, match=name)
        for kind, how, name in wanted
    ]
    answer = raw.ask(DescribeClientQuotasRequest(components=components, strict=strict))
    assert answer.error_code == ErrorCode.NONE, answer
    return [
        ({one.entity_type: one.entity_name for one in row.entity}, {one.key: one.value for one in row.values})
        for row in answer.entries
    ]


@pytest.fixture
def metered(tmp_path: Path) -> Iterator[Broker]:
    """A broker of the test's own, which measures over one second."""
    with Broker(tmp_path / "data", settings={"quota.window.num": 2}) as broker:
        yield broker


@pytest.fixture
def raw(metered: Broker) -> Iterator[Raw]:
    with Raw(metered) as connection:
        yield connection


# What is kept


def test_every_kind_of_client_may_have_quotas_and_they_are_described_as_they_were_set(raw: Raw) -> None:
    rows: list[tuple[_Names, dict[str, float | None]]] = [
        ({"user": "u"}, {PRODUCER: 1000.0, CONSUMER: 2000.0}),
        ({"user": None}, {WORK: 50.5}),
        ({"client-id": "c"}, {PRODUCER: 1e9}),
        ({"client-id": None}, {MUTATION: 0.25}),
        ({"client-id": "c", "user": "u"}, {PRODUCER: 1e7}),
        ({"client-id": None, "user": None}, {CONSUMER: 3e9}),
        ({"ip": "127.0.0.2"}, {CONNECTION: 100.0}),
        ({"ip": None}, {CONNECTION: 1000.0}),
    ]
    for names, quotas in rows:
        assert alter(raw, names, quotas) == ErrorCode.NONE
    assert described(raw) == rows


def test_a_quota_taken_back_is_gone_and_with_the_last_one_nobody_is_counted_any_more(metered: Broker, raw: Raw) -> None:
    assert metered.server.quotas is None
    alter(raw, {"user": "u"}, {PRODUCER: 1000.0, CONSUMER: 2000.0})
    assert metered.server.quotas is not None
    alter(raw, {"user": "u"}, {PRODUCER: None})
    assert described(raw) == [({"user": "u"}, {CONSUMER: 2000.0})]
    alter(raw, {"user": "u"}, {CONSUMER: None, "never there": None})
    assert described(raw) == []
    assert metered.server.quotas is None
    assert alter(raw, {"user": "nobody"}, {PRODUCER: None}) == ErrorCode.NONE


def test_a_question_may_name_an_entity_its_default_or_any_and_strictly_no_other_type(raw: Raw) -> None:
    user, default, both, of_all = {"user": "u"}, {"user": None}, {"client-id": "c", "user": "u"}, {"client-id": None}
    for names in (user, default, both, of_all):
        alter(raw, dict(names), {PRODUCER: 7.0})

    def found(*wanted: tuple[str, int, str | None], strict: bool = False) -> list[_Names]:
        return [names for names, _ in described(raw, *wanted, strict=strict)]

    assert found() == [user, default, both, of_all]
    assert found(strict=True) == []
    assert found(("user", EXACT, "u")) == [user, both]
    assert found(("user", EXACT, "u"), strict=True) == [user]
    assert found(("user", DEFAULT, None)) == [default]
    assert found(("user", SPECIFIED, None)) == [user, default, both]
    assert found(("user", SPECIFIED, None), strict=True) == [user, default]
    assert found(("client-id", SPECIFIED, None), strict=True) == [of_all]
    assert found(("user", SPECIFIED, None), ("client-id", SPECIFIED, None)) == [both]
    assert found(("user", EXACT, "nobody")) == []


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ([("robot", SPECIFIED, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("", EXACT, "x")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, "x")], ErrorCode.INVALID_REQUEST),
        ([("user", SPECIFIED, "x")], ErrorCode.INVALID_REQUEST),
        ([("user", SPECIFIED, None), ("user", EXACT, "u")], ErrorCode.INVALID_REQUEST),
        ([("ip", SPECIFIED, None), ("user", SPECIFIED, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(
    broker: Broker, wanted: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    rows = [DescribeClientQuotasRequest.ComponentData(entity_type=k, match_type=m, match=n) for k, m, n in wanted]
    with Raw(broker) as raw:
        answer = raw.ask(DescribeClientQuotasRequest(components=rows))
    assert (answer.error_code, answer.entries) == (code, None)


@pytest.mark.parametrize(
    ("names", "quotas"),
    [
        ({}, {PRODUCER: 1.0}),
        ({"robot": "r"}, {PRODUCER: 1.0}),
        ({"user": ""}, {PRODUCER: 1.0}),
        ({"client-id": ""}, {PRODUCER: 1.0}),
        ({"ip": ""}, {CONNECTION: 1.0}),
        ({"ip": "not an address"}, {CONNECTION: 1.0}),
        ({"ip": "10.0.0.1", "user": "u"}, {CONNECTION: 1.0}),
        ({"ip": "10.0.0.1"}, {PRODUCER: 1.0}),
        ({"user": "u"}, {CONNECTION: 1.0}),
        ({"user": "u"}, {"no_such_rate": 1.0}),
        ({"user": "u"}, {PRODUCER: 0.0}),
        ({"user": "u"}, {PRODUCER: -1.0}),
        ({"user": "u"}, {PRODUCER: 1.5}),
        ({"user": "u"}, {PRODUCER: 1e19}),
        ({"user": "u"}, {PRODUCER: float("inf")}),
        ({"user": "u"}, {WORK: float("inf")}),
        ({"user": "u"}, {PRODUCER: float("nan")}),
        ({"ip": "10.0.0.1"}, {CONNECTION: 3e9}),
        ({"user": "u"}, {CONSUMER: 5.0, PRODUCER: 0.5}),
    ],
)
def test_a_quota_that_makes_no_sense_is_refused_and_nothing_of_it_is_kept(
    broker: Broker, names: _Names, quotas: dict[str, float | None]
) -> None:
    with Raw(broker) as raw:
        assert alter(raw, names, quotas) == ErrorCode.INVALID_REQUEST
        assert described(raw) == []


def test_one_entity_may_be_refused_while_another_is_changed(raw: Raw) -> None:
    good, bad = entry({"user": "good"}, {PRODUCER: 7.0}), entry({"user": "bad"}, {PRODUCER: -7.0})
    rows = raw.ask(AlterClientQuotasRequest(entries=[good, bad])).entries
    assert [row.error_code for row in rows] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    twice = raw.ask(AlterClientQuotasRequest(entries=[entry({"user": "twice"}, {PRODUCER: 1.0})] * 2)).entries
    assert [row.error_code for row in twice] == [ErrorCode.INVALID_REQUEST]
    assert alter(raw, {"user": "tried"}, {PRODUCER: 7.0}, validate_only=True) == ErrorCode.NONE
    assert described(raw) == [({"user": "good"}, {PRODUCER: 7.0})]


def test_quotas_outlive_kill_9(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        with Raw(broker.bootstrap_servers) as raw:
            alter(raw, {"client-id": None, "user": "u"}, {PRODUCER: 7.0})
        broker.kill9()
    with BrokerProcess(data) as broker, Raw(broker.bootstrap_servers) as raw:
        assert described(raw) == [({"client-id": None, "user": "u"}, {PRODUCER: 7.0})]


# Which one holds


def log_in(broker: Broker, raw: Raw, user: str) -> ServerConnection:
    """What the broker's end of a connection is after its client has authenticated as this user."""
    raw.ask(ApiVersionsRequest(), 0)
    (served,) = [one for one in broker.server.connections._open if one.peer == raw.socket.getsockname()]
    served.authenticated(Principal("User", user))
    return served


@pytest.mark.parametrize("me", ["ANONYMOUS", "alice", "CN=Alice Ärmel,O=a/b", "<default>", "%3Cdefault%3E"])
def test_the_most_specific_quota_holds_and_says_who_shares_it(metered: Broker, raw: Raw, me: str) -> None:
    call = Call(0, 0, 0, "c", log_in(metered, raw, me))
    alter(raw, {"client-id": "c", "user": "somebody else"}, {PRODUCER: 100.0, CONSUMER: 100.0})
    in_order: list[tuple[_Names, tuple[str, str]]] = [
        ({"client-id": None}, ("", "c")),
        ({"client-id": "c"}, ("", "c")),
        ({"user": None}, (me, "")),
        ({"client-id": None, "user": None}, (me, "c")),
        ({"client-id": "c", "user": None}, (me, "c")),
        ({"user": me}, (me, "")),
        ({"client-id": None, "user": me}, (me, "c")),
        ({"client-id": "c", "user": me}, (me, "c")),
    ]
    for value, (names, shared_by) in enumerate(in_order, 1):
        alter(raw, names, {PRODUCER: float(value)})
        quotas = metered.server.quotas
        assert quotas is not None
        assert quotas._quota_of(PRODUCER, call) == (float(value), (PRODUCER, *shared_by))
        # Each kind of quota looks for itself: this one is not set for anybody here.
        assert quotas._quota_of(CONSUMER, call) is None


# What is kept to


def waited_s(raw: Raw, since: float) -> float:
    """How long it takes until the connection is served again."""
    raw.ask(MetadataRequest(topics=[]))
    return time.monotonic() - since


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_producer_above_its_quota_is_told_to_wait_and_not_heard_meanwhile(
    metered: Broker, raw: Raw, topic: str, version: int
) -> None:
    topic_id = raw.create(topic)
    alter(raw, {"client-id": "raw"}, {PRODUCER: 100_000.0})
    asked = produce_request(topic, batch(b"x" * 130_000))
    asked.topic_data[0].topic_id = topic_id
    began = time.monotonic()
    answer = raw.ask(asked, version)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert 300 <= answer.throttle_time_ms <= 310
    assert metered.server.connections.muted == 1
    assert waited_s(raw, began) >= 0.3
    assert (metered.server.connections.muted, metered.server.metrics.quota_throttles) == (0, 1)


def test_another_client_is_not_held_up_by_it(metered: Broker, raw: Raw, topic: str) -> None:
    raw.create(topic)
    alter(raw, {"client-id": "raw"}, {PRODUCER: 1000.0})
    assert raw.ask(produce_request(topic, batch(b"x" * 9_000)), 12).throttle_time_ms > 8_000
    with Raw(metered, client_id="other") as other:
        assert other.ask(produce_request(topic, batch(b"x" * 9_000)), 12).throttle_time_ms == 0


def test_clients_of_one_user_share_the_users_quota(metered: Broker, raw: Raw, topic: str) -> None:
    raw.create(topic)
    alter(raw, {"user": None}, {PRODUCER: 10_000.0})
    assert raw.ask(produce_request(topic, batch(b"x" * 9_000)), 12).throttle_time_ms == 0
    with Raw(metered, client_id="other") as other:
        assert other.ask(produce_request(topic, batch(b"x" * 9_000)), 12).throttle_time_ms > 500


def test_each_user_has_the_default_quota_for_itself_and_shares_its_own(
    metered: Broker, raw: Raw, topic: str
) -> None:
    raw.create(topic)
    alter(raw, {"user": None}, {PRODUCER: 10_000.0})
    alter(raw, {"user": "carol"}, {PRODUCER: 1_000_000.0})
    alter(raw, {"user": "dave", "client-id": "tight"}, {PRODUCER: 1000.0})

    def throttled(user: str, client_id: str) -> bool:
        with Raw(metered, client_id=client_id) as client:
            log_in(metered, client, user)
            answer = client.ask(produce_request(topic, batch(b"x" * 9_000)), 12)
            return bool(answer.throttle_time_ms > 500)

    assert not throttled("alice", "one")
    assert not throttled("bob", "one"), "the default is for each user, not for all together"
    assert throttled("alice", "two"), "a user's clients share it"
    assert not throttled("carol", "one")
    assert not throttled("carol", "two")
    assert throttled("dave", "tight")
    assert not throttled("dave", "loose"), "another client of the user has the user's quota"


def test_work_and_changes_are_counted_by_user_too(metered: Broker, raw: Raw) -> None:
    alter(raw, {"user": "alice"}, {WORK: 1e-9, MUTATION: 0.001})
    with Raw(metered) as alice, Raw(metered) as bob:
        log_in(metered, alice, "alice")
        log_in(metered, bob, "bob")
        assert bob.ask(MetadataRequest(topics=[])).throttle_time_ms == 0
        bob.create("bobs")
        assert alice.ask(MetadataRequest(topics=[])).throttle_time_ms > 0


def test_a_producer_that_wants_no_answer_is_not_heard_either(raw: Raw, topic: str) -> None:
    raw.create(topic)
    alter(raw, {"client-id": "raw"}, {PRODUCER: 100_000.0})
    began = time.monotonic()
    raw.send(produce_request(topic, batch(b"x" * 130_000), acks=0), 12)
    assert waited_s(raw, began) >= 0.3


def test_a_wait_longer_than_an_answer_can_say_is_the_longest_it_can_say(raw: Raw, topic: str) -> None:
    raw.create(topic)
    alter(raw, {"client-id": "raw"}, {PRODUCER: 1.0, WORK: 5e-324})
    answer = raw.ask(produce_request(topic, batch(b"x" * 3_000_000)), 12)
    assert answer.throttle_time_ms == 2**31 - 1


@pytest.mark.semel(**{"quota.window.num": 2, "semel.durability": "fsync"})
def test_a_produce_that_waits_for_the_disk_is_counted_too(semel_broker: Broker, topic: str) -> None:
    with Raw(semel_broker) as raw:
        raw.create(topic)
        alter(raw, {"client-id": "raw"}, {PRODUCER: 100_000.0})
        began = time.monotonic()
        assert raw.ask(produce_request(topic, batch(b"x" * 130_000)), 12).throttle_time_ms >= 300
        assert waited_s(raw, began) >= 0.3


def test_a_reader_above_its_quota_gets_nothing_yet_and_all_of_it_later(raw: Raw, topic: str) -> None:
    raw.create(topic)
    for number in range(4):
        raw.produce(topic, batch(b"%d" % number + b"x" * 59_999))
    alter(raw, {"client-id": "raw"}, {CONSUMER: 100_000.0})
    values: list[bytes | None] = []
    throttled = 0
    began = time.monotonic()
    while len(values) < 4:
        asked = fetch_request({(topic, 0): len(values)}, partition_max_bytes=1, session_epoch=0)
        answer = raw.ask(asked, 12)
        if answer.throttle_time_ms:
            throttled += 1
            assert (answer.session_id, answer.responses) == (0, [])
        else:
            values += values_of(answer.responses[0].partitions[0])
    assert [value[:1] for value in values if value] == [b"0", b"1", b"2", b"3"]
    assert throttled >= 1
    assert time.monotonic() - began >= 1.0


def test_a_fetch_larger_than_its_quota_allows_at_once_is_cut_to_it(raw: Raw, topic: str) -> None:
    raw.create(topic)
    for _ in range(5):
        raw.produce(topic, batch(b"x" * 30_000))
    alter(raw, {"client-id": "raw"}, {CONSUMER: 100_000.0})
    answer = raw.ask(fetch_request({(topic, 0): 0}, min_bytes=140_000, max_wait_ms=5_000), 12)
    assert answer.throttle_time_ms == 0
    assert len(values_of(answer.responses[0].partitions[0])) == 3


def test_a_session_goes_on_after_an_answer_that_was_held_back(raw: Raw, topic: str) -> None:
    raw.create(topic)
    first = raw.ask(fetch_request({(topic, 0): 0}, max_wait_ms=0, session_epoch=0), 12)
    alter(raw, {"client-id": "raw"}, {CONSUMER: 100_000.0})
    for _ in range(2):
        raw.produce(topic, batch(b"x" * 60_000))
    session = {"session_id": first.session_id, "max_wait_ms": 0}
    taken = raw.ask(fetch_request({(topic, 0): 0}, session_epoch=1, partition_max_bytes=1, **session), 12)
    assert len(values_of(taken.responses[0].partitions[0])) == 1
    held_back = raw.ask(fetch_request({(topic, 0): 1}, session_epoch=2, **session), 12)
    assert (held_back.session_id, held_back.responses) == (first.session_id, [])
    assert 0 < held_back.throttle_time_ms <= 400
    for epoch in range(3, 30):
        again = raw.ask(fetch_request({}, session_epoch=epoch, **session), 12)
        if again.responses:
            break
    assert len(values_of(again.responses[0].partitions[0])) == 1


def test_a_waiting_fetch_is_held_to_the_quota_when_it_is_answered(metered: Broker, raw: Raw, topic: str) -> None:
    raw.create(topic)
    alter(raw, {"client-id": "raw"}, {CONSUMER: 1_000.0})
    sent = raw.send(fetch_request({(topic, 0): 0}, max_wait_ms=8_000), 12)
    with Raw(metered, client_id="other") as other:
        other.produce(topic, batch(b"x" * 1_100))
    assert raw.receive(sent).throttle_time_ms > 0


def test_work_above_the_percentage_is_waited_for_whatever_the_request(raw: Raw) -> None:
    alter(raw, {"user": None}, {WORK: 0.001})
    asked = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    began = time.monotonic()
    first = raw.ask(asked).throttle_time_ms
    assert 0 < first <= 1000
    assert waited_s(raw, began) >= (first - 2) / 1000, "the loop counts in milliseconds"
    assert raw.ask(MetadataRequest(topics=[]), 0).throttle_time_ms == 0, "version 0 has no place for it"


def creation(name: str, partitions: int) -> CreateTopicsRequest:
    row = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    return CreateTopicsRequest(topics=[row])


@pytest.mark.semel(**{"controller.quota.window.num": 1})
def test_changes_above_the_rate_are_refused_until_they_may_be_made(semel_broker: Broker) -> None:
    with Raw(semel_broker) as raw:
        alter(raw, {"user": None}, {MUTATION: 10.0})
        assert raw.ask(creation("a", 13)).topics[0].error_code == ErrorCode.NONE
        refused = raw.ask(creation("b", 1))
        assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert 0 < refused.throttle_time_ms <= 300
        assert raw.ask(creation("b", 1)).topics[0].error_code == ErrorCode.NONE


@pytest.mark.semel(**{"controller.quota.window.num": 1})
def test_growing_and_deleting_count_as_changes_and_old_clients_wait_instead_of_being_refused(
    semel_broker: Broker,
) -> None:
    grow = CreatePartitionsRequest(
        topics=[CreatePartitionsRequest.CreatePartitionsTopic(name="a", count=3, assignments=None)]
    )
    delete = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="a")])
    with Raw(semel_broker) as raw:
        raw.create("a")
        alter(raw, {"client-id": "raw"}, {MUTATION: 1.0})
        assert raw.ask(grow, 2).throttle_time_ms > 0
        alter(raw, {"client-id": "raw"}, {MUTATION: 1.5})
        assert raw.ask(creation("b", 2), 5).throttle_time_ms > 0
        alter(raw, {"client-id": "raw"}, {MUTATION: 2.0})
        assert raw.ask(delete).responses[0].error_code == ErrorCode.NONE
        refused = raw.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="b")]))
        assert refused.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


@pytest.mark.semel(**{"controller.quota.window.num": 1, "num.partitions": 13})
def test_a_topic_is_not_created_by_asking_for_it_while_changes_are_above_the_rate(semel_broker: Broker) -> None:
    with Raw(semel_broker) as raw:
        alter(raw, {"client-id": "raw"}, {MUTATION: 10.0})

        def codes(name: str) -> list[int]:
            asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])
            return [raw.ask(asked).topics[0].error_code for _ in range(2)]

        assert codes("a") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
        assert codes("b") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
        until(lambda: codes("b")[1] == ErrorCode.NONE, within_s=5, what="the rate to allow it")


def test_connections_that_come_too_fast_are_kept_waiting_and_closed(metered: Broker, raw: Raw) -> None:
    alter(raw, {"ip": "127.0.0.1"}, {CONNECTION: 2.0})
    for _ in range(2):
        with Raw(metered) as welcome:
            welcome.ask(MetadataRequest(topics=[]))
    began = time.monotonic()
    with Raw(metered) as hasty:
        hasty.send(MetadataRequest(topics=[]))
        assert hasty.is_closed()
    assert time.monotonic() - began >= 0.3
    alter(raw, {"ip": "127.0.0.1"}, {CONNECTION: None})
    with Raw(metered) as welcome:
        welcome.ask(MetadataRequest(topics=[]))
