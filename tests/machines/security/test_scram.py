"""SCRAM: the RFC's own example, both halves against each other, and every way to lie that somebody has tried."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.machines.security.scram import (
    DIGESTS,
    MIN_ITERATIONS,
    ScramClient,
    ScramError,
    ScramKeys,
    ScramServer,
    ScramStep,
    escape_name,
    keys_of,
    keys_of_nobody,
    read_client_first,
    salted_password,
    unescape_name,
)

SALT = b"0123456789abcdef"


def stored(mechanism: str, password: str, salt: bytes = SALT, iterations: int = MIN_ITERATIONS) -> ScramKeys:
    return keys_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def exchange(mechanism: str, client: ScramClient, keys: ScramKeys) -> ScramServer:
    server = ScramServer(mechanism)
    challenge = server.begin(read_client_first(client.first()), keys, "server-nonce")
    client.check(server.finish(client.prove(challenge)))
    return server


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    server = ScramServer("SCRAM-SHA-256")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = server.begin(
        read_client_first(client.first()), stored("SCRAM-SHA-256", "pencil", salt), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    assert challenge == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = client.prove(challenge)
    assert proof == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    signature = server.finish(proof)
    assert signature == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.check(signature)
    assert (server.step, client.step, server.user) == (ScramStep.DONE, ScramStep.DONE, "user")


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(sorted(DIGESTS)), st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_the_right_password_is_accepted_whatever_its_letters(mechanism: str, user: str, password: str) -> None:
    client = ScramClient(mechanism, user, password, "client-nonce")
    assert exchange(mechanism, client, stored(mechanism, password)).user == user


def test_a_wrong_password_is_refused() -> None:
    client = ScramClient("SCRAM-SHA-512", "alice", "wrong", "n")
    with pytest.raises(ScramError, match="the proof is wrong"):
        exchange("SCRAM-SHA-512", client, stored("SCRAM-SHA-512", "right"))


def test_a_user_that_does_not_exist_gets_the_same_salt_each_time_and_no_password_fits() -> None:
    mechanism = "SCRAM-SHA-256"
    nobody = keys_of_nobody(mechanism, "mallory", b"secret of the server")
    assert nobody == keys_of_nobody(mechanism, "mallory", b"secret of the server")
    assert nobody.salt != keys_of_nobody(mechanism, "other", b"secret of the server").salt
    with pytest.raises(ScramError, match="the proof is wrong"):
        exchange(mechanism, ScramClient(mechanism, "mallory", "anything", "n"), nobody)


def middle(mechanism: str = "SCRAM-SHA-256") -> tuple[ScramClient, ScramServer, bytes]:
    client, server = ScramClient(mechanism, "alice", "secret", "client-nonce"), ScramServer(mechanism)
    challenge = server.begin(read_client_first(client.first()), stored(mechanism, "secret"), "server-nonce")
    return client, server, client.prove(challenge)


def test_a_proof_under_another_nonce_is_refused() -> None:
    """CVE-2024-56128: the nonce must be the one that the server gave out in this exchange."""
    _, server, proof = middle()
    with pytest.raises(ScramError, match="nonce"):
        server.finish(proof.replace(b"server-nonce", b"another-nonc"))
    assert server.step is ScramStep.FAILED


def test_a_proof_is_good_once() -> None:
    _, server, proof = middle()
    server.finish(proof)
    with pytest.raises(ScramError):
        server.finish(proof)
    assert server.step is ScramStep.FAILED


def test_another_authorization_id_is_refused() -> None:
    """CVE-2017-12610: nobody acts as somebody else."""
    assert read_client_first(b"n,a=alice,n=alice,r=x").authorization_id == "alice"
    with pytest.raises(ScramError, match="authorization id"):
        read_client_first(b"n,a=admin,n=alice,r=x")


@pytest.mark.parametrize(
    "message",
    [
        b"", b"n", b"n,,", b"n,,n=,r=x", b"n,,n=a,r=", b"n,,n=a", b"n,,r=x,n=a", b"x,,n=a,r=x", b"n,,m=1,n=a,r=x",
        b"p=tls-unique,,n=a,r=x", b"n,,n=a=2,r=x", b"n,,n=a,r=x y", b"n,,n=\xff,r=x", b"n,,n=a,r=" + b"x" * 20_000,
    ],
)
def test_a_first_message_of_another_form_is_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        read_client_first(message)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    _, server, _ = middle()
    with pytest.raises(ScramError):
        server.finish(data)
    client = ScramClient("SCRAM-SHA-256", "alice", "secret", "n")
    client.first()
    with pytest.raises(ScramError):
        client.prove(data)


def test_a_changed_byte_anywhere_in_the_proof_is_refused() -> None:
    _, _, proof = middle()
    for at in range(len(proof)):
        _, server, _ = middle()
        changed = proof[:at] + bytes([proof[at] ^ 1]) + proof[at + 1 :]
        try:
            server.finish(changed)
        except ScramError:
            continue
        # The last letter of base64 holds bits that stand for nothing: then the proof itself is the same.
        assert base64.b64decode(changed.split(b"p=")[1]) == base64.b64decode(proof.split(b"p=")[1])


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=other,s=c2FsdA==,i=4096", b"r=mine,s=c2FsdA==,i=4096", b"r=mine-more,s=!,i=4096",
        b"r=mine-more,s=c2FsdA==,i=x",
    ],
)
def test_a_client_refuses_a_server_that_does_not_continue_its_nonce_or_lies(challenge: bytes) -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "secret", "mine")
    client.first()
    with pytest.raises(ScramError):
        client.prove(challenge)


@pytest.mark.parametrize("iterations", [1, 4095, 999_999_999])
def test_a_client_agrees_neither_to_a_weak_hash_nor_to_an_endless_one(iterations: int) -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "secret", "mine")
    client.first()
    with pytest.raises(ScramError, match="iterations"):
        client.prove(f"r=mine-more,s=c2FsdA==,i={iterations}".encode())


def test_a_client_does_not_trust_a_server_without_the_credential() -> None:
    client, _, _ = middle()
    with pytest.raises(ScramError, match="does not have this user's credential"):
        client.check(b"v=" + base64.b64encode(bytes(32)))
    early = ScramClient("SCRAM-SHA-256", "alice", "secret", "mine")
    early.first()
    with pytest.raises(ScramError, match="before"):
        early.check(b"v=" + base64.b64encode(b""))


def test_a_delegation_token_is_told_by_its_extension() -> None:
    assert read_client_first(ScramClient("SCRAM-SHA-256", "id", "hmac", "x", is_token=True).first()).is_token
    assert not read_client_first(b"n,,n=id,r=x").is_token


@given(st.text(min_size=1))
def test_a_name_comes_back_from_its_escape(name: str) -> None:
    assert unescape_name(escape_name(name)) == name
