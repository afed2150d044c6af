"""Settings of the broker and of groups, changed while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from semel.wire.messages.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from semel.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from tests.broker.raw import Raw, batch

BROKER, TOPIC, GROUP = 4, 2, 32
SET, DELETE, APPEND = 0, 1, 2
FROM_BROKER, FROM_ALL_BROKERS, FROM_BROKER_FILE, FROM_DEFAULT, FROM_GROUP = 2, 3, 4, 5, 8


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Raw]:
    with Broker(tmp_path, settings={"log.retention.ms": 1000}) as broker, Raw(broker) as connection:
        yield connection


def change(
    raw: Raw,
    name: str,
    value: str | None,
    operation: int = SET,
    *,
    broker: str = "1",
    group: str | None = None,
    **options: Any,
) -> Any:
    row = IncrementalAlterConfigsRequest.AlterableConfig(name=name, value=value, config_operation=operation)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=BROKER if group is None else GROUP,
        resource_name=broker if group is None else group,
        configs=[row],
    )
    return raw.ask(IncrementalAlterConfigsRequest(resources=[resource], **options)).responses[0]


def described(raw: Raw, name: str, *, resource: str = "1", resource_type: int = BROKER) -> Any:
    row = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=resource_type, resource_name=resource, configuration_keys=[name]
    )
    found = raw.ask(DescribeConfigsRequest(resources=[row], include_synonyms=True)).results[0].configs
    return found[0] if found else None


def test_a_changed_default_holds_at_once_for_topics_without_a_setting_of_their_own(running: Raw) -> None:
    running.create("follows")
    running.create("has-its-own", max_message_bytes="2000")
    assert change(running, "message.max.bytes", "200").error_code == ErrorCode.NONE
    large = batch(b"x" * 500)
    assert running.produce("follows", large).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert running.produce("has-its-own", large).error_code == ErrorCode.NONE
    assert change(running, "message.max.bytes", None, DELETE).error_code == ErrorCode.NONE
    assert running.produce("follows", large).error_code == ErrorCode.NONE


def test_a_setting_tells_where_it_comes_from_and_what_stands_behind_it(running: Raw) -> None:
    change(running, "log.retention.ms", "2000", broker="")
    change(running, "log.retention.ms", "3000")
    row = described(running, "log.retention.ms")
    assert (row.value, row.config_source, row.read_only) == ("3000", FROM_BROKER, False)
    week = str(7 * 24 * 3600 * 1000)
    assert [(one.value, one.source) for one in row.synonyms] == [
        ("3000", FROM_BROKER),
        ("2000", FROM_ALL_BROKERS),
        ("1000", FROM_BROKER_FILE),
        (week, FROM_DEFAULT),
    ]
    running.create("topic")
    row = described(running, "retention.ms", resource="topic", resource_type=TOPIC)
    assert (row.value, row.config_source) == ("3000", FROM_BROKER)
    row = described(running, "log.retention.ms", resource="")
    assert (row.value, row.config_source) == ("2000", FROM_ALL_BROKERS)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("node.id", "7", ErrorCode.INVALID_REQUEST),
        ("no.such.setting", "7", ErrorCode.INVALID_CONFIG),
        ("log.segment.bytes", "few", ErrorCode.INVALID_REQUEST),
        ("log.segment.bytes", "1", ErrorCode.INVALID_REQUEST),
        ("log.segment.bytes", None, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_hold_at_once_is_refused(running: Raw, name: str, value: str | None, code: ErrorCode) -> None:
    assert change(running, name, value).error_code == code
    row = described(running, name)
    assert row is None or row.config_source == FROM_DEFAULT


def test_settings_that_need_a_restart_say_that_they_are_read_only(running: Raw) -> None:
    assert described(running, "node.id").read_only
    assert not described(running, "log.cleaner.backoff.ms").read_only


def test_a_throttle_that_tools_take_back_after_a_reassignment_was_never_needed(running: Raw) -> None:
    assert change(running, "leader.replication.throttled.rate", None, DELETE).error_code == ErrorCode.NONE


def test_nothing_holds_that_was_only_validated(running: Raw) -> None:
    assert change(running, "log.segment.bytes", "5000", validate_only=True).error_code == ErrorCode.NONE
    assert described(running, "log.segment.bytes").config_source == FROM_DEFAULT


def test_a_list_is_appended_to(running: Raw) -> None:
    assert change(running, "log.cleanup.policy", "compact", APPEND).error_code == ErrorCode.NONE
    assert described(running, "log.cleanup.policy").value == "delete,compact"


def test_replacing_all_takes_back_what_is_not_named(running: Raw) -> None:
    change(running, "log.segment.bytes", "5000")
    row = AlterConfigsRequest.AlterableConfig(name="log.flush.interval.messages", value="1234")
    resource = AlterConfigsRequest.AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=[row])
    assert running.ask(AlterConfigsRequest(resources=[resource])).responses[0].error_code == ErrorCode.NONE
    assert described(running, "log.flush.interval.messages").value == "1234"
    assert described(running, "log.segment.bytes").config_source == FROM_DEFAULT


def test_another_broker_cannot_be_changed(running: Raw) -> None:
    assert change(running, "log.segment.bytes", "5000", broker="2").error_code == ErrorCode.INVALID_REQUEST


def test_changes_outlive_the_broker(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        change(raw, "log.segment.bytes", "5000")
        change(raw, "log.retention.ms", "2000", broker="")
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("topic")
        assert described(raw, "segment.bytes", resource="topic", resource_type=TOPIC).value == "5000"
        assert described(raw, "retention.ms", resource="topic", resource_type=TOPIC).value == "2000"
        assert described(raw, "log.segment.bytes").config_source == FROM_BROKER


def test_what_the_broker_was_started_with_says_so_also_where_it_was_given_in_hours_or_means_nothing(
    tmp_path: Path,
) -> None:
    given = {"log.retention.hours": 1, "log.roll.hours": 2, "num.replica.fetchers": 4, "quorum.voters": "1@x:1"}
    given |= {"ssl.keystore.password": "hidden", "num.partitions": 3, "controller.quorum.bootstrap.servers": "x:1"}
    with Broker(tmp_path, settings=given) as broker, Raw(broker) as raw:
        raw.create("t")
        row = described(raw, "retention.ms", resource="t", resource_type=TOPIC)
        assert (row.value, row.config_source) == ("3600000", FROM_BROKER_FILE)
        first = row.synonyms[0]
        assert (first.name, first.value, first.source) == ("log.retention.hours", "1", FROM_BROKER_FILE)
        row = described(raw, "segment.ms", resource="t", resource_type=TOPIC)
        assert (row.value, row.config_source) == ("7200000", FROM_BROKER_FILE)
        row = described(raw, "log.retention.ms")
        assert (row.value, row.config_source) == ("3600000", FROM_BROKER_FILE)
        for name, value in given.items():
            row = described(raw, name)
            hidden = name == "ssl.keystore.password"
            assert (row.config_source, row.is_sensitive) == (FROM_BROKER_FILE, hidden), name
            assert row.value == (None if hidden else str(value))
            assert not hidden or [one.value for one in row.synonyms] == [None, None]


def test_what_is_only_kept_outlives_the_broker_and_changes_nothing(tmp_path: Path) -> None:
    name = "sasl.kerberos.min.time.before.relogin"
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        assert change(raw, name, "70000").error_code == ErrorCode.NONE
        assert change(raw, name, "soon").error_code == ErrorCode.INVALID_REQUEST
        assert change(raw, "listeners", "PLAINTEXT://127.0.0.1:1").error_code == ErrorCode.NONE
        assert change(raw, "sasl.kerberos.principal.to.local.rules", "RULE:x", APPEND).error_code == ErrorCode.NONE
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        assert described(raw, name).value == "70000"
        assert described(raw, name).config_source == FROM_BROKER
        assert described(raw, "listeners").value == "PLAINTEXT://127.0.0.1:1"
        assert described(raw, "sasl.kerberos.principal.to.local.rules").value == "DEFAULT,RULE:x"


def test_verification_of_transactions_is_switched_while_the_broker_runs(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t")
        raw.produce("t", batch())
        log = broker.server.topics.partition("t", 0).log
        assert log.verifies_transactions
        assert change(raw, "transaction.partition.verification.enable", "false").error_code == ErrorCode.NONE
        assert not log.verifies_transactions


@pytest.mark.parametrize("name", ["ssl.no.such", "listener.name.plaintext.no.such", "listener.name..ssl.protocol"])
def test_what_kafka_does_not_have_is_refused(running: Raw, name: str) -> None:
    assert change(running, name, "1").error_code == ErrorCode.INVALID_CONFIG


# Groups


def joined(raw: Raw, group: str) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["topic"],
        topic_partitions=[],
    )
    answer: ConsumerGroupHeartbeatResponse = raw.ask(request)
    return answer


def test_a_groups_own_heartbeat_interval_is_told_to_its_members(running: Raw) -> None:
    assert change(running, "consumer.heartbeat.interval.ms", "7000", group="slow").error_code == ErrorCode.NONE
    assert joined(running, "slow").heartbeat_interval_ms == 7000
    assert joined(running, "other").heartbeat_interval_ms == 5000
    change(running, "consumer.heartbeat.interval.ms", None, DELETE, group="slow")
    assert joined(running, "slow").heartbeat_interval_ms == 5000


def test_a_groups_settings_are_described_also_before_the_group_exists(running: Raw) -> None:
    row = described(running, "consumer.session.timeout.ms", resource="new", resource_type=GROUP)
    assert (row.value, row.config_source) == ("45000", FROM_DEFAULT)
    change(running, "consumer.session.timeout.ms", "50000", group="new")
    row = described(running, "consumer.session.timeout.ms", resource="new", resource_type=GROUP)
    assert (row.value, row.config_source) == ("50000", FROM_GROUP)
    listed = running.ask(ListConfigResourcesRequest(resource_types=[GROUP])).config_resources
    assert [row.resource_name for row in listed] == ["new"]


@pytest.mark.parametrize(
    ("name", "value", "group", "code"),
    [
        ("consumer.session.timeout.ms", "44999", "g", ErrorCode.INVALID_CONFIG),
        ("consumer.session.timeout.ms", "60001", "g", ErrorCode.INVALID_CONFIG),
        ("consumer.session.timeout.ms", "soon", "g", ErrorCode.INVALID_CONFIG),
        ("consumer.heartbeat.interval.ms", "4999", "g", ErrorCode.INVALID_CONFIG),
        ("consumer.no.such", "1", "g", ErrorCode.INVALID_CONFIG),
        ("consumer.session.timeout.ms", "50000", "", ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_group_stays_within_the_brokers_bounds(
    running: Raw, name: str, value: str, group: str, code: ErrorCode
) -> None:
    assert change(running, name, value, group=group).error_code == code


def test_a_session_is_longer_than_the_pause_between_heartbeats(tmp_path: Path) -> None:
    settings = {"group.consumer.min.session.timeout.ms": 6000}
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as raw:
        change(raw, "consumer.heartbeat.interval.ms", "8000", group="g")
        refused = change(raw, "consumer.session.timeout.ms", "8000", group="g")
        assert refused.error_code == ErrorCode.INVALID_CONFIG


def test_a_groups_settings_outlive_the_broker(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        change(raw, "consumer.heartbeat.interval.ms", "7000", group="slow")
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        assert joined(raw, "slow").heartbeat_interval_ms == 7000
