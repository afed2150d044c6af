"""SCRAM credentials: set, described and removed as in Kafka, and never told."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from semel.machines.security.scram import keys_of
from semel.wire.messages.security import AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest
from tests.broker.raw import Raw
from tests.support.processes import BrokerProcess

SHA_256, SHA_512 = 1, 2


def upsertion(user: str = "u", **other: Any) -> AlterUserScramCredentialsRequest.ScramCredentialUpsertion:
    given = {"mechanism": SHA_256, "iterations": 4096, "salt": b"salt", "salted_password": b"p" * 32, **other}
    return AlterUserScramCredentialsRequest.ScramCredentialUpsertion(name=user, **given)


def deletion(user: str = "u", mechanism: int = SHA_256) -> AlterUserScramCredentialsRequest.ScramCredentialDeletion:
    return AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=user, mechanism=mechanism)


def alter(raw: Raw, *changes: Any) -> dict[str, int]:
    """The code each user is answered with."""
    removed = [one for one in changes if isinstance(one, AlterUserScramCredentialsRequest.ScramCredentialDeletion)]
    added = [one for one in changes if one not in removed]
    answer = raw.ask(AlterUserScramCredentialsRequest(deletions=removed, upsertions=added))
    codes: dict[str, int] = {row.user: row.error_code for row in answer.results}
    assert len(codes) == len(answer.results)
    assert all((row.error_message is None) == (row.error_code == 0) for row in answer.results)
    return codes


def described(raw: Raw, *users: str) -> dict[str, Any]:
    """Mechanism and iterations of each user, or the code that stands for them."""
    rows = [DescribeUserScramCredentialsRequest.UserName(name=user) for user in users]
    answer = raw.ask(DescribeUserScramCredentialsRequest(users=rows or None))
    assert answer.error_code == ErrorCode.NONE
    return {
        row.user: row.error_code or [(one.mechanism, one.iterations) for one in row.credential_infos]
        for row in answer.results
    }


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[Raw]:
    with Broker(tmp_path / "data") as broker, Raw(broker) as connection:
        yield connection


def test_credentials_are_set_described_changed_and_removed(raw: Raw) -> None:
    assert described(raw) == {}
    assert alter(raw, upsertion("a"), upsertion("b", mechanism=SHA_512, iterations=8192)) == {"a": 0, "b": 0}
    assert alter(raw, upsertion("a", mechanism=SHA_512)) == {"a": 0}
    assert described(raw) == {"a": [(SHA_256, 4096), (SHA_512, 4096)], "b": [(SHA_512, 8192)]}
    assert alter(raw, upsertion("a", iterations=16384), deletion("b", SHA_512)) == {"a": 0, "b": 0}
    assert described(raw, "a", "b") == {
        "a": [(SHA_256, 16384), (SHA_512, 4096)],
        "b": ErrorCode.RESOURCE_NOT_FOUND,
    }


def test_a_user_asked_for_twice_is_refused(raw: Raw) -> None:
    alter(raw, upsertion("a"))
    assert described(raw, "a", "a", "b") == {
        "a": ErrorCode.DUPLICATE_RESOURCE,
        "b": ErrorCode.RESOURCE_NOT_FOUND,
    }


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([upsertion(mechanism=0)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([upsertion(mechanism=3)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([deletion(mechanism=9)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([upsertion(iterations=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(iterations=16385)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(salted_password=b"")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([deletion(mechanism=SHA_512)], ErrorCode.RESOURCE_NOT_FOUND),
        ([upsertion(), upsertion(mechanism=SHA_512)], ErrorCode.DUPLICATE_RESOURCE),
        ([upsertion(), upsertion(), upsertion()], ErrorCode.DUPLICATE_RESOURCE),
        ([deletion(), upsertion(iterations=5000)], ErrorCode.DUPLICATE_RESOURCE),
        ([deletion(mechanism=SHA_512), upsertion(iterations=5000)], ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
def test_a_change_that_cannot_be_made_leaves_its_user_alone_and_the_others_change(
    raw: Raw, changes: list[Any], code: ErrorCode
) -> None:
    alter(raw, upsertion())
    assert alter(raw, *changes, upsertion("other")) == {"u": code, "other": ErrorCode.NONE}
    assert described(raw) == {"u": [(SHA_256, 4096)], "other": [(SHA_256, 4096)]}


def test_a_user_without_a_name_is_refused(raw: Raw) -> None:
    assert alter(raw, upsertion("")) == {"": ErrorCode.UNACCEPTABLE_CREDENTIAL}
    assert alter(raw, deletion("")) == {"": ErrorCode.UNACCEPTABLE_CREDENTIAL}


def test_what_is_kept_checks_a_password_as_the_standard_says() -> None:
    # The exchange of RFC 7677, section 3: user "user", password "pencil".
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    kept = keys_of("SCRAM-SHA-256", hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096), salt, 4096)
    nonce = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    said = b"n=user,r=rOprNGfwEbeRWgbNEkqO," + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws," + nonce
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signature = hmac.digest(kept.stored_key, said, "sha256")
    client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
    assert hashlib.sha256(client_key).digest() == kept.stored_key
    answer = base64.b64encode(hmac.digest(kept.server_key, said, "sha256"))
    assert answer == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_credentials_outlive_kill_9_and_the_password_is_nowhere_on_disk(tmp_path: Path) -> None:
    data = tmp_path / "data"
    secret = b"salted-password-of-thirty-two-by"
    with BrokerProcess(data) as broker:
        with Raw(broker.bootstrap_servers) as raw:
            alter(raw, upsertion("a", salted_password=secret))
        broker.kill9()
    stored = b"".join(path.read_bytes() for path in (data / ".metadata").iterdir())
    assert secret not in stored
    assert base64.b64encode(secret) not in stored
    with BrokerProcess(data) as broker, Raw(broker.bootstrap_servers) as raw:
        assert described(raw) == {"a": [(SHA_256, 4096)]}


def test_asking_for_very_many_users_costs_no_square_of_their_number(raw: Raw) -> None:
    answer = described(raw, *(f"somebody with a name of some length {number}" for number in range(40_000)))
    assert set(answer.values()) == {ErrorCode.RESOURCE_NOT_FOUND}
