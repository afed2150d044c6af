"""Delegation tokens: the same requests to Apache Kafka and to us, and Kafka's own tool and clients with our tokens."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tests.security.sasl_talk import CLOSED, Talk
from tests.security.token_brokers import USERS, TokenBroker
from tests.support import java_tools
from tests.support.waiting import until

pytestmark = pytest.mark.java

USER, GROUP = "User", "Group"


class Client:
    """Somebody who asks one of the two brokers for tokens."""

    def __init__(self, place: TokenBroker) -> None:
        self.place = place

    def talk(self, user: str = "alice", listener: str = "CLIENTS") -> Talk:
        talk = Talk(self.place.address(listener))
        assert talk.plain(user, USERS[user]).error_code == 0
        return talk

    def create(self, user: str = "alice", version: int = 3, **fields: Any) -> Any:
        """A token that the broker knows. Kafka's brokers hear of it a moment after it is answered."""
        answer = self.refused(user, version, **fields)
        assert answer.error_code == 0
        until(lambda: answer.token_id in self.ids(), within_s=20, what="the token")
        return answer

    def ids(self) -> list[str]:
        """The ids of all tokens that the broker knows."""
        with self.talk() as talk:
            return [token.token_id for token in talk.ask(DescribeDelegationTokenRequest(owners=None)).tokens]

    def refused(self, user: str = "alice", version: int = 3, **fields: Any) -> Any:
        owner = {"owner_principal_type": None, "owner_principal_name": None, "max_lifetime_ms": -1}
        with self.talk(user) as talk:
            return talk.ask(CreateDelegationTokenRequest(**{**owner, **fields}), version)

    def renew(self, token: Any, user: str = "alice", period_ms: int = -1, version: int = 2) -> Any:
        with self.talk(user) as talk:
            return talk.ask(RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=period_ms), version)

    def expire(self, token: Any, user: str = "alice", period_ms: int = -1, version: int = 2) -> Any:
        with self.talk(user) as talk:
            return talk.ask(ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=period_ms), version)

    def login(self, token: Any, mechanism: str, listener: str = "CLIENTS") -> tuple[Talk, Any]:
        talk = Talk(self.place.address(listener))
        return talk, talk.scram(mechanism, token.token_id, base64.b64encode(token.hmac).decode(), is_token=True)


def renewers(*names: tuple[str, str]) -> list[CreateDelegationTokenRequest.CreatableRenewers]:
    row = CreateDelegationTokenRequest.CreatableRenewers
    return [row(principal_type=kind, principal_name=name) for kind, name in names]


def created(client: Client, version: int = 3, **fields: Any) -> Any:
    """What is told of a new token that says nothing about its secret or the time."""
    answer = client.refused("alice", version, **fields)
    return (
        answer.error_code, answer.principal_type, answer.principal_name, answer.token_requester_principal_name,
        answer.expiry_timestamp_ms - answer.issue_timestamp_ms, answer.max_timestamp_ms - answer.issue_timestamp_ms,
        len(answer.token_id), len(answer.hmac),
    )


def moved(client: Client, ask: str, period_ms: int, version: int = 2) -> Any:
    """How far a token's end is away after it was moved, in whole seconds."""
    token = client.create()
    began_ms = time.time() * 1000
    answer = getattr(client, ask)(token, "alice", period_ms, version)
    return answer.error_code, round((answer.expiry_timestamp_ms - began_ms) / 5000)


def by_others(client: Client) -> Any:
    token = client.create(renewers=renewers((USER, "bob")), owner_principal_type=USER, owner_principal_name="carol")
    codes = [client.renew(token, user, 20_000).error_code for user in USERS]
    codes += [client.expire(token, user, 30_000).error_code for user in USERS]
    return codes


def removed(client: Client) -> Any:
    token = client.create()
    first = client.expire(token).error_code
    until(lambda: token.token_id not in client.ids(), within_s=20, what="the removal")
    talk, answer = client.login(token, "SCRAM-SHA-256")
    with talk:
        return first, client.expire(token).error_code, answer.error_code, answer.error_message


def by_token(client: Client, mechanism: str) -> Any:
    token = client.create()
    talk, answer = client.login(token, mechanism)
    with talk:
        noted = [answer.error_code, answer.session_lifetime_ms > 0]
        for asked in (
            CreateDelegationTokenRequest(max_lifetime_ms=-1),
            RenewDelegationTokenRequest(hmac=token.hmac),
            ExpireDelegationTokenRequest(hmac=token.hmac),
            DescribeDelegationTokenRequest(owners=None),
        ):
            noted.append(talk.ask(asked).error_code)
        return [*noted, talk.tell(MetadataRequest(topics=[])) != CLOSED]


def wrong_logins(client: Client) -> Any:
    token = client.create()
    noted = []
    password = base64.b64encode(token.hmac).decode()
    for user, secret, is_token in (
        (token.token_id, "wrong", True), (token.token_id, password, False), ("alice", password, True),
        ("", password, True),
    ):
        with Talk(client.place.address()) as talk:
            answer = talk.scram("SCRAM-SHA-512", user, secret, is_token=is_token)
            noted.append((answer.error_code, answer.error_message))
    return noted


def described(client: Client) -> Any:
    names = {"owner_principal_type": USER, "owner_principal_name": "carol"}
    tokens = [client.create(), client.create(**names), client.create(renewers=renewers((USER, "bob")))]
    ids = {token.token_id: number for number, token in enumerate(tokens)}
    row = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    noted = []
    for version in (1, 2, 3):
        for owners in (None, [], ["alice"], ["bob"], ["carol"], ["carol", "bob"], ["nobody"]):
            asked = None if owners is None else [row(principal_type=USER, principal_name=name) for name in owners]
            with client.talk("bob") as talk:
                answer = talk.ask(DescribeDelegationTokenRequest(owners=asked), version)
            ours = [one for one in answer.tokens if one.token_id in ids]
            assert all(one.hmac == tokens[ids[one.token_id]].hmac for one in ours)
            seen = [
                (ids[one.token_id], one.principal_name, one.token_requester_principal_name, len(one.renewers))
                for one in ours
            ]
            noted.append((version, owners, answer.error_code, sorted(seen)))
    return noted


def ends_with_the_token(client: Client) -> Any:
    token = client.create(max_lifetime_ms=6000)
    talk, answer = client.login(token, "SCRAM-SHA-256")
    with talk:
        served = talk.tell(MetadataRequest(topics=[])) != CLOSED
        left_s = token.expiry_timestamp_ms / 1000 - time.time()
        until(lambda: time.time() * 1000 > token.expiry_timestamp_ms + 50, within_s=10, what="the token's end")
        later = talk.tell(MetadataRequest(topics=[])) != CLOSED
        return answer.error_code, abs(answer.session_lifetime_ms / 1000 - left_s) < 2, served, later


SCRIPTS: dict[str, Callable[[Client], Any]] = {
    **{f"create, v{version}": partial(created, version=version) for version in (1, 2, 3)},
    **{
        f"create, {fields}": partial(created, **fields)
        for fields in (
            {"max_lifetime_ms": 0}, {"max_lifetime_ms": 5000}, {"max_lifetime_ms": 2**63 - 1}, {"max_lifetime_ms": -9},
            {"owner_principal_type": USER, "owner_principal_name": "bob"},
            {"owner_principal_type": GROUP, "owner_principal_name": "bob"},
            {"owner_principal_type": GROUP, "owner_principal_name": ""},
        )
    },
    **{
        f"create, renewers {names}": partial(created, renewers=renewers(*names))
        for names in (((USER, "bob"), (USER, "bob")), ((GROUP, "x"),), (("user", "x"),), ((USER, ""),))
    },
    **{
        f"{ask} by {period_ms} ms, v{version}": partial(moved, ask=ask, period_ms=period_ms, version=version)
        for ask in ("renew", "expire") for period_ms, version in ((-1, 1), (0, 2), (20_000, 2), (10**12, 2))
    },
    "renew and expire what is not there": lambda client: [
        (answer.error_code, answer.expiry_timestamp_ms)
        for hmac in (b"", b"x", bytes(64))
        for ask in (client.renew, client.expire)
        for answer in [ask(type("T", (), {"hmac": hmac}))]
    ],
    "owner, renewer and requester": by_others,
    "removed": removed,
    **{f"a client with a token, {name}": partial(by_token, mechanism=name) for name in ("SCRAM-SHA-256",)},
    "logins that are wrong": wrong_logins,
    "described": described,
    "the session ends": ends_with_the_token,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_client_is_told_what_kafka_tells_it(token_kafka: TokenBroker, token_semel: TokenBroker, name: str) -> None:
    ours, kafkas = SCRIPTS[name](Client(token_semel)), SCRIPTS[name](Client(token_kafka))
    assert ours == kafkas, f"Kafka: {kafkas}"


def test_a_token_is_refused_on_a_plaintext_listener_as_in_kafka(
    token_kafka: TokenBroker, token_semel: TokenBroker
) -> None:
    def told(place: TokenBroker) -> Any:
        with Talk(place.plaintext) as talk:
            return [
                talk.ask(asked)
                for asked in (
                    CreateDelegationTokenRequest(max_lifetime_ms=-1),
                    CreateDelegationTokenRequest(owner_principal_type=USER, owner_principal_name="bob"),
                    RenewDelegationTokenRequest(hmac=b"x"),
                    ExpireDelegationTokenRequest(hmac=b"x"),
                    DescribeDelegationTokenRequest(owners=None),
                )
            ]

    assert told(token_semel) == told(token_kafka)


# Kafka's own tool


def test_kafkas_tool_creates_renews_describes_and_removes_our_tokens(token_semel: TokenBroker, tmp_path: Path) -> None:
    config = tmp_path / "alice.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="alice" password="{USERS["alice"]}";\n'
    )

    def tool(*arguments: object, config: Path = config, check: bool = True) -> java_tools.ToolResult:
        return java_tools.run(
            "delegation-tokens", "--bootstrap-server", token_semel.address(), "--command-config", config, *arguments,
            check=check,
        )

    made = tool("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob").stdout
    token_id, secret = re.search(r"^(\S{22})\s+(\S{86}==)\s+User:alice", made, re.M).groups()  # type: ignore[union-attr]
    assert secret in tool("--describe", "--owner-principal", "User:alice").stdout
    assert "Completed renew operation" in tool("--renew", "--renew-time-period", "-1", "--hmac", secret).stdout
    # A Java client with nothing but the token.
    with_token = tmp_path / "token.properties"
    with_token.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{token_id}" password="{secret}" tokenauth="true";\n'
    )
    refused = tool("--describe", config=with_token, check=False)
    assert "Delegation Token requests are not allowed" in refused.stdout + refused.stderr
    java_tools.run(
        "console-producer", "--bootstrap-server", token_semel.address(), "--topic", "by-token", "--command-config",
        with_token, stdin="one\n",
    )
    read = java_tools.run(
        "console-consumer", "--bootstrap-server", token_semel.address(), "--topic", "by-token", "--from-beginning",
        "--max-messages", "1", "--timeout-ms", "20000", "--command-config", with_token,
    )
    assert read.stdout == "one\n"
    assert "Completed expire operation" in tool("--expire", "--expiry-time-period", "-1", "--hmac", secret).stdout
    assert token_id not in tool("--describe").stdout
