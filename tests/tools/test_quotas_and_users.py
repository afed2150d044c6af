"""kafka-configs for users, clients and addresses, and what else Kafka's tools ask of a broker's doors."""

from __future__ import annotations

import re

import pytest

from tests.support import java_tools


def configs(broker, *arguments: str, check: bool = True) -> str:
    done = java_tools.run("configs", "--bootstrap-server", broker.bootstrap_servers, *arguments, check=check)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("entity", "quota", "said"),
    [
        (("--entity-type", "clients", "--entity-name", "c"), "producer_byte_rate=1024", "client-id 'c'"),
        (("--entity-type", "clients", "--entity-default"), "consumer_byte_rate=2048", "the default client-id"),
        (("--entity-type", "users", "--entity-default"), "request_percentage=200", "the default user-principal"),
        (
            ("--entity-type", "users", "--entity-name", "u", "--entity-type", "clients", "--entity-name", "c"),
            "controller_mutation_rate=10",
            "user-principal 'u', client-id 'c'",
        ),
        (("--entity-type", "ips", "--entity-name", "127.0.0.9"), "connection_creation_rate=99", "ip '127.0.0.9'"),
    ],
    ids=["client", "default client", "default user", "user and client", "ip"],
)
def test_quotas_are_set_described_and_removed(broker, entity: tuple[str, ...], quota: str, said: str) -> None:
    configs(broker, "--alter", *entity, "--add-config", quota)
    described = configs(broker, "--describe", *entity)
    assert re.search(rf"Quota configs for {said} are {quota}(\.0)?\b", described), described
    configs(broker, "--alter", *entity, "--delete-config", quota.partition("=")[0])
    assert quota not in configs(broker, "--describe", *entity)


def test_a_users_password_is_set_and_only_its_mechanism_is_described(broker) -> None:
    user = ("--entity-type", "users", "--entity-name", "alice")
    configs(broker, "--alter", *user, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=wonder]")
    described = configs(broker, "--describe", *user)
    assert "SCRAM credential configs for user-principal 'alice' are SCRAM-SHA-256=iterations=8192" in described
    configs(broker, "--alter", *user, "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM-SHA-256" not in configs(broker, "--describe", *user)


def test_a_quota_that_makes_no_sense_is_refused(broker) -> None:
    client = ("--entity-type", "clients", "--entity-name", "c")
    refused = configs(broker, "--alter", *client, "--add-config", "producer_byte_rate=-1", check=False)
    assert "InvalidRequestException" in refused


def test_the_acl_tool_is_told_that_there_is_no_authorizer(broker) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    refused = java_tools.run("org.apache.kafka.tools.AclCommand", *at, "--list", check=False)
    assert "SecurityDisabledException" in refused.stdout + refused.stderr


def test_the_delegation_token_tool_is_refused(broker, tmp_path) -> None:
    (tmp_path / "client.properties").write_text("")
    given = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", tmp_path / "client.properties")
    refused = java_tools.run("org.apache.kafka.tools.DelegationTokenCommand", *given, "--describe", check=False)
    assert "DelegationToken" in refused.stdout + refused.stderr
