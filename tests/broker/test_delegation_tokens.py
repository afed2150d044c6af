"""Delegation tokens in a running broker: asked for by a client with a password, used by a client without one."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.broker.embedded import Broker
from semel.errors import AuthenticationFailed, ErrorCode
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tests.broker.raw import Raw
from tests.security.sasl_talk import CLOSED, Talk
from tests.support.processes import free_port
from tests.support.waiting import until

USERS = {"alice": "al1ce", "bob": "b0b", "carol": "c4rol"}
KEY = "a key that is nowhere to be seen"
MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def settings(port: int, **more: object) -> dict[str, object]:
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "sasl.jaas.config": f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};",
        "delegation.token.secret.key": KEY,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


class Place:
    """A broker, and where its listener with SASL is."""

    def __init__(self, broker: Broker, port: int) -> None:
        self.broker = broker
        self.address = f"127.0.0.1:{port}"

    def talk(self) -> Talk:
        return Talk(self.address)

    def as_user(self, name: str) -> Talk:
        talk = self.talk()
        assert talk.plain(name, USERS[name]).error_code == 0
        return talk

    def with_token(self, token: Any, mechanism: str = "SCRAM-SHA-256") -> tuple[Talk, Any]:
        talk = self.talk()
        password = base64.b64encode(token.hmac).decode()
        return talk, talk.scram(mechanism, token.token_id, password, is_token=True)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    port = free_port()
    with Broker(settings=settings(port, delegation_token_expiry_check_interval_ms=200)) as broker:
        yield Place(broker, port)


def create(talk: Raw, *renewers: str, owner: str | None = None, version: int = 3, max_lifetime_ms: int = -1) -> Any:
    row = CreateDelegationTokenRequest.CreatableRenewers
    return talk.ask(
        CreateDelegationTokenRequest(
            owner_principal_type=None if owner is None else "User",
            owner_principal_name=owner,
            renewers=[row(principal_type="User", principal_name=name) for name in renewers],
            max_lifetime_ms=max_lifetime_ms,
        ),
        version,
    )


def described(talk: Raw, *owners: str, version: int = 3) -> dict[str, Any]:
    row = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    named = [row(principal_type="User", principal_name=owner) for owner in owners]
    answer = talk.ask(DescribeDelegationTokenRequest(owners=named or None), version)
    assert answer.error_code == 0
    return {token.token_id: token for token in answer.tokens}


def is_served(talk: Talk) -> bool:
    return talk.tell(MetadataRequest(topics=[])) != CLOSED


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_client_with_a_token_is_the_tokens_owner_until_it_ends(place: Place, mechanism: str, version: int) -> None:
    with place.as_user("alice") as alice:
        token = create(alice, version=version, max_lifetime_ms=50_000)
    assert (token.error_code, token.principal_name, len(token.hmac)) == (0, "alice", 64)
    assert (token.max_timestamp_ms, token.expiry_timestamp_ms) == (token.issue_timestamp_ms + 50_000,) * 2
    talk, answer = place.with_token(token, mechanism)
    with talk:
        assert answer.error_code == 0
        assert 0 < answer.session_lifetime_ms <= 50_000
        assert is_served(talk)
        # It is alice for everybody who asks, but it may ask nothing about tokens.
        for asked in (
            CreateDelegationTokenRequest(max_lifetime_ms=-1),
            RenewDelegationTokenRequest(hmac=token.hmac),
            ExpireDelegationTokenRequest(hmac=token.hmac),
            DescribeDelegationTokenRequest(owners=None),
        ):
            assert talk.ask(asked).error_code == NOT_ALLOWED


def test_a_token_can_be_for_another_owner(place: Place) -> None:
    with place.as_user("alice") as alice, place.as_user("bob") as bob:
        token = create(alice, owner="bob")
        names = (token.principal_name, token.token_requester_principal_name)
        assert (token.error_code, names) == (0, ("bob", "alice"))
        assert alice.ask(RenewDelegationTokenRequest(hmac=token.hmac)).error_code == (
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        )
        assert bob.ask(RenewDelegationTokenRequest(hmac=token.hmac)).error_code == 0
        assert token.token_id in described(bob, "bob")


def test_renewers_move_the_end_and_a_removed_token_opens_nothing(place: Place) -> None:
    with place.as_user("alice") as alice, place.as_user("bob") as bob:
        token = create(alice, "bob")
        for version in (1, 2):
            renewed = bob.ask(RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=20_000), version)
            assert renewed.error_code == 0
            assert renewed.expiry_timestamp_ms < token.expiry_timestamp_ms
        assert described(alice)[token.token_id].expiry_timestamp == renewed.expiry_timestamp_ms
        assert [one.principal_name for one in described(alice)[token.token_id].renewers] == ["bob"]
        removed = bob.ask(ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1))
        assert (removed.error_code, removed.expiry_timestamp_ms <= time.time() * 1000) == (0, True)
        assert token.token_id not in described(alice)
        again = bob.ask(ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1))
        assert again.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    talk, answer = place.with_token(token)
    talk.socket.close()
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_session_ends_with_its_token_and_the_token_is_removed(place: Place) -> None:
    with place.as_user("alice") as alice:
        token = create(alice, max_lifetime_ms=1500)
        talk, answer = place.with_token(token)
        with talk:
            assert answer.error_code == 0
            assert is_served(talk)
            until(lambda: not is_served(talk), within_s=10, what="the end of the session")
            assert time.time() * 1000 >= token.expiry_timestamp_ms
        until(lambda: token.token_id not in described(alice), within_s=10, what="the removal of the token")
    talk, answer = place.with_token(token)
    with talk:
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_token_that_has_ended_opens_nothing_before_it_is_removed() -> None:
    port = free_port()
    with Broker(settings=settings(port)) as broker:
        place = Place(broker, port)
        with place.as_user("alice") as alice:
            token = create(alice)
            talk, answer = place.with_token(token)  # its keys are remembered from here on
            talk.socket.close()
            assert answer.error_code == 0
            assert alice.ask(ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=0)).error_code == 0
            talk, answer = place.with_token(token)
            talk.socket.close()
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert token.token_id in described(alice)
            renewed = alice.ask(RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1))
            assert renewed.error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_tokens_id_is_no_user_and_a_user_is_no_token(place: Place, mechanism: str) -> None:
    with place.as_user("alice") as alice:
        token = create(alice)
    password = base64.b64encode(token.hmac).decode()
    for user, secret, is_token in (
        (token.token_id, password, False),
        (token.token_id, "wrong", True),
        ("alice", password, True),
        ("nothing", password, True),
    ):
        with place.talk() as talk:
            answer = talk.scram(mechanism, user, secret, is_token=is_token)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_whoever_did_not_authenticate_gets_no_token(place: Place) -> None:
    with Raw(place.broker) as nobody:
        refused = create(nobody, owner="bob")
        assert (refused.error_code, refused.hmac, refused.token_id) == (NOT_ALLOWED, b"", "")
        assert (refused.principal_name, refused.token_requester_principal_name) == ("bob", "ANONYMOUS")


def test_without_a_key_nobody_gets_a_token() -> None:
    port = free_port()
    without = {name: value for name, value in settings(port).items() if name != "delegation.token.secret.key"}
    with Broker(settings=without) as broker, Place(broker, port).as_user("alice") as alice:
        for asked in (
            CreateDelegationTokenRequest(max_lifetime_ms=-1),
            RenewDelegationTokenRequest(hmac=b"x"),
            ExpireDelegationTokenRequest(hmac=b"x"),
            DescribeDelegationTokenRequest(owners=None),
        ):
            assert alice.ask(asked).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def test_tokens_are_there_after_a_restart_and_their_secrets_nowhere_on_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    port = free_port()
    with Broker(tmp_path, settings=settings(port)) as broker, Place(broker, port).as_user("alice") as alice:
        kept, removed = create(alice, "bob"), create(alice)
        alice.ask(RenewDelegationTokenRequest(hmac=kept.hmac, renew_period_ms=60_000))
        before = described(alice)[kept.token_id]
        alice.ask(ExpireDelegationTokenRequest(hmac=removed.hmac, expiry_time_period_ms=-1))
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert kept.token_id.encode() in stored
    text = caplog.text.encode()
    for secret in (kept.hmac, base64.b64encode(kept.hmac), kept.hmac.hex().encode(), KEY.encode()):
        assert secret not in stored
        assert secret not in text
    port = free_port()
    with Broker(tmp_path, settings=settings(port)) as broker:
        place = Place(broker, port)
        with place.as_user("alice") as alice:
            assert described(alice) == {kept.token_id: before}
        talk, answer = place.with_token(kept)
        with talk:
            assert answer.error_code == 0
    # Another key makes the token worthless, and says nothing about its secret.
    port = free_port()
    with Broker(tmp_path, settings=settings(port, delegation_token_secret_key="another")) as broker:
        talk, answer = Place(broker, port).with_token(kept)
        with talk:
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_damaged_file_of_tokens_is_told_at_the_start(tmp_path: Path) -> None:
    port = free_port()
    with Broker(tmp_path, settings=settings(port)) as broker, Place(broker, port).as_user("alice") as alice:
        create(alice)
    path = tmp_path / ".metadata" / "delegation-tokens"
    path.write_bytes(path.read_bytes().replace(b"alice", b"mally"))
    with pytest.raises(Exception, match="delegation-tokens is damaged"), Broker(tmp_path, settings=settings(port)):
        pass


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_our_client_works_with_a_token_and_is_told_when_it_is_worth_nothing(place: Place, mechanism: str) -> None:
    with place.as_user("alice") as alice:
        token = create(alice)
        password = base64.b64encode(token.hmac).decode()
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        client = {
            "bootstrap.servers": place.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'{module} required username="{token.token_id}" password="{password}" tokenauth=true;',
        }
        with semel.Producer(client) as producer:
            producer.send("with-a-token", value=b"1").result(20)
        alice.ask(ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1))
    with pytest.raises(AuthenticationFailed) as refused, semel.Admin(client) as admin:
        admin.list_topics()
    assert password not in str(refused.value)
