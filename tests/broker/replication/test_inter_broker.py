"""Which listener brokers use among themselves, and what they log in with: refused at the start if it cannot work."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.broker.embedded import Broker
from semel.broker.listeners import Listener
from semel.broker.quotas import Quotas
from semel.broker.replication.inter_broker import inter_broker_listener
from semel.broker.replication.membership import Membership
from semel.broker.stored.quotas import QuotaTable
from semel.config import BROKER, ConfigError

PLAIN = Listener("PLAINTEXT", "h", 1)
CLIENTS, INSIDE = Listener("CLIENTS", "h", 2, "SASL_SSL"), Listener("INSIDE", "h", 3, "SSL")


def test_the_listener_of_brokers_is_the_named_one_or_that_of_the_protocol() -> None:
    listeners = [CLIENTS, INSIDE, PLAIN]

    def chosen(**settings: str) -> Listener:
        return inter_broker_listener(BROKER.parse({n.replace("_", "."): v for n, v in settings.items()}), listeners)

    assert chosen() is PLAIN
    assert chosen(inter_broker_listener_name="inside") is INSIDE
    assert chosen(security_inter_broker_protocol="SSL") is INSIDE
    with pytest.raises(ConfigError, match=r"listener\.name=NOWHERE.*there are CLIENTS, INSIDE, PLAINTEXT"):
        chosen(inter_broker_listener_name="NOWHERE")
    with pytest.raises(ConfigError, match="give one of them"):
        chosen(inter_broker_listener_name="INSIDE", security_inter_broker_protocol="SSL")
    listeners.remove(PLAIN)
    with pytest.raises(ConfigError, match=r"inter\.broker\.protocol=PLAINTEXT.*inter\.broker\.listener\.name"):
        chosen()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, r"sasl\.mechanism\.inter\.broker\.protocol=GSSAPI: GSSAPI \(Kerberos\)"),
        ({"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"}, "does not offer it; add it to sasl.enabled"),
        ({"sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"}, "it is not served"),
        (
            {"sasl.mechanism.inter.broker.protocol": "PLAIN"},
            r"listener\.name\.inside\.plain\.sasl\.jaas\.config: username and password.*are missing",
        ),
    ],
)
def test_a_login_between_brokers_that_cannot_work_is_refused_before_anything_is_done(
    tmp_path: Path, given: dict[str, str], why: str
) -> None:
    users = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="b";'
    settings = {
        "zookeeper.connect": "127.0.0.1:1",
        "listeners": "INSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": users,
        **given,
    }
    with pytest.raises(ConfigError, match=why):
        Broker(tmp_path / "data", settings=settings).start()


@pytest.mark.parametrize(
    ("client_id", "listener", "may_act", "expected"),
    [
        ("semel-broker-2", "INSIDE", True, True),
        ("semel-broker-2", "INSIDE", None, True),
        ("semel-broker-2", "INSIDE", False, False),
        ("semel-broker-2", "CLIENTS", True, False),
        ("admin", "INSIDE", True, False),
    ],
)
def test_a_client_id_alone_makes_nobody_a_broker(
    client_id: str, listener: str, may_act: bool | None, expected: bool
) -> None:
    """`may_act`: what the access rules say about ClusterAction; None without an authorizer."""
    access = None if may_act is None else SimpleNamespace(allows_on_cluster=lambda call, operation, logged: may_act)
    member = SimpleNamespace(_broker=SimpleNamespace(access=access), door=SimpleNamespace(listener=INSIDE))
    call = SimpleNamespace(client_id=client_id, connection=SimpleNamespace(listener_name=listener))
    assert Membership.is_of_a_broker(cast(Any, member), cast(Any, call)) is expected


@pytest.mark.parametrize("is_of_a_broker", [False, True])
def test_quotas_are_for_clients_and_not_for_other_brokers(is_of_a_broker: bool) -> None:
    """A quota for all users would otherwise hold replicas back."""

    class Table(QuotaTable):
        async def replace(self, changes: Any) -> None:
            raise NotImplementedError

    rates = {"producer_byte_rate": 1.0, "consumer_byte_rate": 1.0, "request_percentage": 1.0}
    quotas = Quotas(Table({(("user", None),): rates}), BROKER.parse({}), cast(Any, None), lambda: 0)
    quotas.is_of_a_broker = lambda call: is_of_a_broker
    principal = SimpleNamespace(name="broker")
    call = cast(Any, SimpleNamespace(client_id="semel-broker-2", connection=SimpleNamespace(principal=principal)))
    waits = (
        quotas.produce_wait_ms(call, 10**6), quotas.fetch_wait_ms(call, 10**6), quotas.work_wait_ms(call, 10**10)
    )
    assert all(wait == 0 for wait in waits) if is_of_a_broker else all(wait > 0 for wait in waits)
