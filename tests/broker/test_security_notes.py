"""What an operator is told when a broker with security starts, and when there is nothing to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from semel import AclBinding, Broker, Security
from semel.broker.security_notes import security_summary, security_warnings
from semel.config import ConfigError

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
SCRAM = {"sasl.enabled.mechanisms": "SCRAM-SHA-512"}
PLAIN = {
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.jaas.config": 'org.example.PlainLoginModule required user_root="secret";',
}
BOTH = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SECURE://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_PLAINTEXT",
}
ROOT = {"super.users": "User:root"}


def told(settings: Mapping[str, object], *, at: str = "127.0.0.1") -> list[str]:
    """The warnings of a broker with these settings, if it listened on another address."""
    with Broker(settings=settings) as broker:
        listening = broker.server.listening
        listening.listeners[:] = [replace(one, host=at) for one in listening.listeners]
        return list(security_warnings(broker.server))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {**AUTHORIZER, **ROOT, **PLAIN, "listeners": "SASL_PLAINTEXT://127.0.0.1:0"},
        {**BOTH, **PLAIN},
        {**BOTH, **PLAIN, **AUTHORIZER, **ROOT},
    ],
)
def test_there_is_nothing_to_say_about_what_only_this_machine_reaches(settings: dict[str, object]) -> None:
    assert told(settings) == []
    assert told(settings, at="::1") == []


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::", "10.0.0.7", "broker.example"])
def test_an_open_listener_for_other_machines_beside_a_protected_one_is_told(address: str) -> None:
    for settings in ({**BOTH, **PLAIN}, {**AUTHORIZER, **ROOT}):
        open_one, *_ = told(settings, at=address)
        assert "listener PLAINTEXT://" in open_one
        assert "asks nobody who they are" in open_one
        assert "\n" not in open_one


def test_a_broker_that_is_open_everywhere_on_purpose_is_told_nothing() -> None:
    assert told({}, at="0.0.0.0") == []


def test_passwords_that_others_can_read_are_told() -> None:
    (warning,) = told({**PLAIN, "listeners": "SASL_PLAINTEXT://127.0.0.1:0"}, at="10.0.0.7")
    assert "does not encrypt" in warning


def test_an_anonymous_super_user_is_told() -> None:
    (warning,) = told({**AUTHORIZER, "super.users": "User:ANONYMOUS"})
    assert warning.startswith("super.users has User:ANONYMOUS: whoever comes to listener PLAINTEXT://127.0.0.1:")
    asks = {**PLAIN, "listeners": "SASL_PLAINTEXT://127.0.0.1:0"}
    assert told({**AUTHORIZER, **asks, "super.users": "User:ANONYMOUS"}) == []


def test_rules_about_users_whom_nobody_asks_who_they_are_are_told() -> None:
    (warning,) = told({**AUTHORIZER, **ROOT})
    assert "everybody is User:ANONYMOUS" in warning


def test_rules_that_lock_everybody_out_are_told() -> None:
    *_, warning = told(AUTHORIZER)
    assert "nobody may do anything; set super.users" in warning
    assert not any("nobody may" in one for one in told({**AUTHORIZER, "allow.everyone.if.no.acl.found": True}))


def test_a_broker_without_its_first_user_is_told_how_to_make_one() -> None:
    (warning,) = told({**SCRAM, "listeners": "SASL_PLAINTEXT://127.0.0.1:0"})
    assert "semel user create NAME --data " in warning
    assert told({**BOTH, **SCRAM}) == []


def test_the_summary_names_listeners_mechanisms_rules_and_super_users() -> None:
    rule = AclBinding("User:alice", "read", "topic", "payments")
    with Broker(security=Security(["root"], acls=[rule], super_users=["root"])) as broker:
        address = broker.bootstrap_servers
        assert security_summary(broker.server) == (
            f"listeners: SASL_SSL://{address} (SCRAM-SHA-512, SCRAM-SHA-256, PLAIN); access rules: 1; "
            "super users: User:root"
        )
        assert list(security_warnings(broker.server)) == []
    with Broker(security=Security(protocol="SSL")) as broker:
        assert security_summary(broker.server).endswith("no access rules: everybody who gets in may do everything")


def test_settings_of_rules_without_an_authorizer_are_told_to_have_no_effect() -> None:
    (warning,) = told({**PLAIN, **ROOT, "listeners": "SASL_PLAINTEXT://127.0.0.1:0"})
    assert warning.startswith("super.users: no effect, because authorizer.class.name is not set")


def test_a_super_user_that_nobody_can_be_is_told() -> None:
    settings = {**PLAIN, **AUTHORIZER, "listeners": "SASL_PLAINTEXT://127.0.0.1:0", "super.users": "User:root;user:bob"}
    (warning,) = told(settings)
    assert "user:bob, which is nobody" in warning


def test_a_listener_that_does_not_speak_what_its_name_says_is_told() -> None:
    (warning,) = told({"listeners": "SASL_SSL://127.0.0.1:0", "listener.security.protocol.map": "SASL_SSL:PLAINTEXT"})
    assert "makes listener SASL_SSL speak PLAINTEXT" in warning


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({**AUTHORIZER, "super.users": "User:a, User:b"}, "super.users: .*put semicolons between principals"),
        ({"listeners": "PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"}, "there are 2 listeners PLAINTEXT"),
        ({"listeners": "A://127.0.0.1:0,A://[::1]:0,A://127.0.0.2:0", "listener.security.protocol.map": "A:PLAINTEXT"},
         "there are 3 listeners A"),
        ({"advertised.listeners": "PLAINTEXT://a:1,PLAINTEXT://b:1"}, "advertised.listeners: there are 2"),
        ({"principal.builder.class": "com.example.Builder"}, "principal.builder.class: Java classes cannot be loaded"),
        ({"listener.name.plaintext.principal.builder.class": "com.example.Builder"}, "Java classes cannot be loaded"),
        ({"ssl.engine.factory.class": "com.example.Engine"}, "ssl.engine.factory.class: Java classes cannot be loaded"),
    ],
)
def test_what_would_make_somebody_else_of_a_client_is_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Broker(settings=settings).start()


def test_kafkas_own_principal_builder_is_what_is_done_here() -> None:
    builder = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
    assert told({"principal.builder.class": builder}) == []
