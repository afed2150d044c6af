"""Logins by SCRAM, and what an attacker learns from them: nothing."""

from __future__ import annotations

import base64
import hmac
import re
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from semel.machines.security import scram
from semel.machines.security.scram import ScramClient
from semel.wire.messages.security import AlterUserScramCredentialsRequest
from tests.broker.raw import Raw
from tests.security.conftest import unsecured_token
from tests.security.sasl_talk import Talk, nonce, plain
from tests.security.test_bearer_beside_kafka import bearer
from tests.support.processes import free_port

MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
REFUSED = ErrorCode.SASL_AUTHENTICATION_FAILED


def settings(port: int) -> dict[str, object]:
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="right";',
        "semel.sasl.oauthbearer.unsecured": "true",
        "connection.failed.authentication.delay.ms": "0",
        "delegation.token.secret.key": "key",
    }


def set_password(broker: Broker, mechanism: str, user: str = "alice") -> None:
    with semel.Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.set_scram_credentials(user, "right", mechanism)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    port = free_port()
    with Broker(tmp_path_factory.mktemp("scram"), settings=settings(port)) as broker:
        for mechanism in MECHANISMS:
            set_password(broker, mechanism)
        yield f"127.0.0.1:{port}"


def challenge(address: str, mechanism: str, user: str, *, is_token: bool = False) -> dict[str, str]:
    """What the server's first message says about a user."""
    with Talk(address) as talk:
        talk.handshake(mechanism)
        answer = talk.authenticate(ScramClient(mechanism, user, "x", nonce(), is_token=is_token).first())
        assert answer.error_code == 0
        found = re.fullmatch(r"r=(?P<nonce>.*),s=(?P<salt>.*),i=(?P<iterations>\d+)", bytes(answer.auth_bytes).decode())
        assert found is not None
        return found.groupdict()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_that_does_not_exist_looks_like_one_with_another_password(place: str, mechanism: str) -> None:
    known, unknown = (challenge(place, mechanism, user) for user in ("alice", "nobody"))
    assert known["iterations"] == unknown["iterations"]
    assert len(base64.b64decode(known["salt"])) == len(base64.b64decode(unknown["salt"]))
    assert len(known["nonce"]) == len(unknown["nonce"])
    assert unknown["salt"] == challenge(place, mechanism, "nobody")["salt"]
    assert unknown["salt"] != challenge(place, mechanism, "noone")["salt"]
    told = []
    for user in ("alice", "nobody"):
        with Talk(place) as talk:
            answer = talk.scram(mechanism, user, "wrong")
            told.append((answer.error_code, answer.error_message, talk.is_closed()))
    assert told[0] == told[1]
    assert told[0][0] == REFUSED


def test_a_user_that_does_not_exist_looks_the_same_after_a_restart(tmp_path: Path) -> None:
    salts = []
    for _ in range(2):
        port = free_port()
        with Broker(tmp_path, settings=settings(port)):
            salts.append(challenge(f"127.0.0.1:{port}", "SCRAM-SHA-256", "nobody")["salt"])
    assert salts[0] == salts[1]


def test_what_nobody_is_shown_follows_what_users_have(tmp_path: Path) -> None:
    port = free_port()
    row = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    with Broker(tmp_path, settings=settings(port)) as broker, Raw(broker) as raw:
        changes = [
            row(name=f"u{number}", mechanism=1, iterations=9000, salt=b"s" * 40, salted_password=b"p" * 32)
            for number in range(3)
        ]
        raw.ask(AlterUserScramCredentialsRequest(upsertions=changes))
        shown = challenge(f"127.0.0.1:{port}", "SCRAM-SHA-256", "nobody")
        assert (shown["iterations"], len(base64.b64decode(shown["salt"]))) == ("9000", 40)
        assert challenge(f"127.0.0.1:{port}", "SCRAM-SHA-512", "nobody")["iterations"] == "4096"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_time_of_an_answer_does_not_tell_whether_a_user_exists(place: str, mechanism: str) -> None:
    times: dict[str, list[float]] = {"alice": [], "nobody": []}
    for _ in range(60):
        for user, found in times.items():
            client = ScramClient(mechanism, user, "x", nonce())
            with Talk(place) as talk:
                talk.handshake(mechanism)
                began_s = time.perf_counter()
                talk.authenticate(client.first())
                found.append(time.perf_counter() - began_s)
    medians = sorted(statistics.median(found) for found in times.values())
    # A hash of 4096 rounds, which is what must not be done for one of them only, would be ten times as long.
    assert medians[1] < 3 * medians[0] + 0.0005


def test_proofs_nonces_and_passwords_are_compared_in_constant_time(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    real = hmac.compare_digest

    def spy(left: Any, right: Any) -> bool:
        compared.append(len(right))
        return real(left, right)

    monkeypatch.setattr(scram.hmac, "compare_digest", spy)
    with Talk(place) as talk:
        assert talk.scram("SCRAM-SHA-256", "alice", "wrong").error_code == REFUSED
    assert 32 in compared  # the stored key
    assert len(compared) == 2  # and the nonce
    compared.clear()
    with Talk(place) as talk:
        assert talk.plain("alice", "wrong").error_code == REFUSED
        assert compared == [32]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_cve_2024_56128_a_proof_under_another_nonce_is_refused(place: str, mechanism: str) -> None:
    """The nonce of the last message must be the one that the server gave out."""
    for change in (lambda text: text + b"x", lambda text: text[:-1], lambda text: b"x" + text[1:], lambda text: b"x"):
        with Talk(place) as talk:
            talk.handshake(mechanism)
            client = ScramClient(mechanism, "alice", "right", nonce())
            first = bytes(talk.authenticate(client.first()).auth_bytes)
            given = first.split(b",")[0].removeprefix(b"r=")
            # The proof is right for the message with the changed nonce: only the nonce itself is wrong.
            proof = forged(client, mechanism, first, change(given))
            assert talk.authenticate(proof).error_code == REFUSED


def forged(client: ScramClient, mechanism: str, challenge: bytes, given: bytes) -> bytes:
    """The last message of a client that knows the password and sends another nonce."""
    fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
    salt = base64.b64decode(fields["s"])
    salted = scram.salted_password(mechanism, "right", salt, int(fields["i"]))
    keys = scram.keys_of(mechanism, salted, salt, int(fields["i"]))
    bare = client.first().removeprefix(b"n,,")
    unproven = b"c=biws,r=" + given
    digest = scram.DIGESTS[mechanism]
    signature = hmac.digest(keys.stored_key, b",".join((bare, challenge, unproven)), digest)
    key = hmac.digest(salted, b"Client Key", digest)
    return unproven + b",p=" + base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))


def test_the_forged_message_of_the_test_above_is_right_but_for_its_nonce(place: str) -> None:
    with Talk(place) as talk:
        talk.handshake("SCRAM-SHA-256")
        client = ScramClient("SCRAM-SHA-256", "alice", "right", nonce())
        first = bytes(talk.authenticate(client.first()).auth_bytes)
        given = first.split(b",")[0].removeprefix(b"r=")
        assert talk.authenticate(forged(client, "SCRAM-SHA-256", first, given)).error_code == 0


def test_cve_2017_12610_nobody_acts_as_somebody_else(place: str) -> None:
    """An authorization id other than the user's own is refused by every mechanism, also with the right password."""
    for mechanism, message, own in (
        ("PLAIN", plain("alice", "right", "admin"), plain("alice", "right", "alice")),
        ("OAUTHBEARER", bearer(unsecured_token("alice"), "admin"), bearer(unsecured_token("alice"), "alice")),
        *((name, b"n,a=admin,n=alice,r=" + nonce().encode(), b"n,a=alice,n=alice,r=x") for name in MECHANISMS),
    ):
        with Talk(place) as talk:
            talk.handshake(mechanism)
            code, text = talk.told(message)
            assert (code, "authorization id" in text) == (REFUSED, True), mechanism
            assert talk.is_closed()
        with Talk(place) as talk:
            talk.handshake(mechanism)
            assert talk.told(own)[0] == 0, mechanism


def test_a_token_that_does_not_exist_looks_like_one_that_does(place: str) -> None:
    from semel.wire.messages.tokens import CreateDelegationTokenRequest

    with Talk(place) as talk:
        talk.plain("alice", "right")
        made = talk.ask(CreateDelegationTokenRequest(max_lifetime_ms=-1))
    known, unknown = (challenge(place, "SCRAM-SHA-256", name, is_token=True) for name in (made.token_id, "x" * 22))
    assert known["iterations"] == unknown["iterations"]
    assert len(known["salt"]) == len(unknown["salt"])
