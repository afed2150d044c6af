"""Every dynamic broker setting of Apache Kafka, set and described: the list is read from Kafka's own classes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from semel.broker.stored.dynamic_settings import ALL_BROKERS, DYNAMIC, dynamic_setting
from semel.config import Setting
from semel.config.kept import KEPT, OF_ONE_BROKER
from semel.wire.messages.configs import AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest
from tests.broker.raw import Raw
from tests.support.requirements import kafka_libs
from tests.support.waiting import until

pytestmark = pytest.mark.java

BROKER, SET, DELETE = 4, 0, 1
DYNAMIC_BROKER_CONFIG = 2
PROGRAM = """
import java.util.Set;
import org.apache.kafka.server.config.DynamicBrokerConfig;
public class Dynamic {
    public static void main(String[] none) throws Exception {
        var field = DynamicBrokerConfig.class.getDeclaredField("PER_BROKER_CONFIGS");
        field.setAccessible(true);
        Set<?> ofOneBroker = (Set<?>) field.get(null);
        for (String name : DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS)
            System.out.println(name + " " + ofOneBroker.contains(name));
    }
}
"""
NAMES = sorted({*KEPT.rows, *DYNAMIC})
#: Kafka takes these only as settings of a listener.
OF_A_LISTENER = [name for name in NAMES if name.startswith(("ssl.key.", "ssl.keystore.", "ssl.truststore."))]
#: Kafka looks for the class, the directory or the listener that they name; the first depends on another feature of it.
LOOKED_FOR = {
    "min.insync.replicas",
    "config.providers", "cordoned.log.dirs", "listener.security.protocol.map", "listeners", "metric.reporters",
    "principal.builder.class", "ssl.engine.factory.class",
}  # fmt: skip


def test_the_list_is_kafkas(tmp_path: Path, broker) -> None:
    source = tmp_path / "Dynamic.java"
    source.write_text(PROGRAM)
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{kafka_libs()}/*", str(source)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.split("\n")
    rows = dict(line.split() for line in told if line)
    assert sorted(rows) == NAMES
    assert {name for name, of_one in rows.items() if of_one == "true"} == set(OF_ONE_BROKER)


def value_for(row: Setting) -> str:
    """A value that is legal and not the default."""
    if row.choices:
        return next(choice for choice in row.choices if choice != row.write(row.default))
    if row.kind == "bool":
        return row.write(not row.default) or ""
    if row.kind == "double":
        return "0.7"
    if row.name in ("compression.gzip.level", "log.local.retention.ms"):
        return "5"
    if row.kind in ("int", "long", "short"):
        return str(min(int(row.default or 0) + 1, 2**31 - 2) if row.name != "num.network.threads" else 4)
    return "127.0.0.1:5" if row.name == "max.connections.per.ip.overrides" else "some-value"


def alter(raw: Raw, name: str, value: str | None, *, resource: str = "1") -> int:
    row = IncrementalAlterConfigsRequest.AlterableConfig(
        name=name, value=value, config_operation=DELETE if value is None else SET
    )
    asked = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=BROKER, resource_name=resource, configs=[row]
    )
    answer = raw.ask(IncrementalAlterConfigsRequest(resources=[asked])).responses[0]
    return int(answer.error_code)


def described(raw: Raw, name: str):
    row = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER, resource_name="1", configuration_keys=[name]
    )
    found = raw.ask(DescribeConfigsRequest(resources=[row], include_synonyms=True)).results[0].configs
    return found[0] if found else None


def becomes(raw: Raw, name: str, source: int):
    """The setting once it comes from there; Kafka answers a change before all of it has heard."""

    def changed() -> bool:
        found = described(raw, name)
        return found is not None and found.config_source == source

    until(changed, what=f"{name} to come from {source}")
    return described(raw, name)


@pytest.mark.parametrize("name", sorted({*NAMES} - {*OF_A_LISTENER} - LOOKED_FOR))
def test_a_dynamic_setting_is_set_described_and_taken_back(broker, name: str) -> None:
    row = dynamic_setting(name)
    value = value_for(row)
    with Raw(broker.bootstrap_servers) as raw:
        before = described(raw, name)
        assert before is None or before.read_only is False
        assert alter(raw, name, value) == 0
        found = becomes(raw, name, DYNAMIC_BROKER_CONFIG)
        if row.kind == "password":
            assert (found.value, found.is_sensitive) == (None, True)
        else:
            assert found.value == value
        assert alter(raw, name, None) == 0
        if before is not None:  # Kafka does not tell of its throttles while there are none
            assert becomes(raw, name, before.config_source).value == before.value
        whole = [AlterConfigsRequest.AlterableConfig(name=name, value=value)]
        asked = AlterConfigsRequest.AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=whole)
        assert raw.ask(AlterConfigsRequest(resources=[asked])).responses[0].error_code == 0
        becomes(raw, name, DYNAMIC_BROKER_CONFIG)
        empty = AlterConfigsRequest.AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=[])
        assert raw.ask(AlterConfigsRequest(resources=[empty])).responses[0].error_code == 0
        default = alter(raw, name, value, resource=ALL_BROKERS)
        assert (default != 0) == (name in OF_ONE_BROKER)
        if default == 0:
            assert alter(raw, name, None, resource=ALL_BROKERS) == 0


@pytest.mark.parametrize("name", OF_A_LISTENER)
def test_keys_and_certificates_are_those_of_a_listener(broker, name: str) -> None:
    with Raw(broker.bootstrap_servers) as raw:
        assert alter(raw, name, "some-value") != 0
        assert alter(raw, name, None) == 0


@pytest.mark.parametrize(
    "name",
    ["max.connections", "max.connection.creation.rate", "num.network.threads", "sasl.login.refresh.window.factor"],
)
def test_a_listener_may_have_settings_of_its_own(broker, name: str) -> None:
    of_listener = f"listener.name.plaintext.{name}"
    with Raw(broker.bootstrap_servers) as raw:
        value = "0.7" if name.startswith("sasl.") else "4"
        assert alter(raw, of_listener, value) == 0
        assert becomes(raw, of_listener, DYNAMIC_BROKER_CONFIG).value == value
        assert alter(raw, of_listener, None) == 0
