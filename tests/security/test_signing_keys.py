"""An issuer's keys: each for its own kind of signature, and none that is too weak."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from semel.security.signing_keys import ALGORITHMS, MAX_KEYS, KeysError, read_keys
from tests.support.token_issuer import CURVES, RSA_ALGORITHMS, SigningKey, encoded

DATA = b"header.claims"
RSA = SigningKey("r")
KEYS = {**{name: SigningKey(name, name) for name in CURVES}, "RS256": RSA}


def document(*rows: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(rows)}).encode()


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


@pytest.mark.parametrize("algorithm", [*RSA_ALGORITHMS, *CURVES])
def test_a_signature_is_checked_by_each_algorithm(algorithm: str) -> None:
    key = KEYS.get(algorithm, RSA)
    (found,) = read_keys(document(without(key.jwk(), "alg")))
    signature = key.signature(DATA, algorithm)
    assert found.verifies(algorithm, DATA, signature)
    assert not found.verifies(algorithm, DATA + b".", signature)
    assert not found.verifies(algorithm, DATA, signature[:-1] + bytes([signature[-1] ^ 1]))
    for other in set(ALGORITHMS) - {algorithm}:
        assert not found.verifies(other, DATA, signature)
    for wrong in (b"", b"\0" * len(signature), signature + b"\0", signature[1:]):
        assert not found.verifies(algorithm, DATA, wrong)


def test_a_signature_of_another_length_is_none() -> None:
    """One in 256 begins with a zero, and OpenSSL takes it without that zero."""
    (found,) = read_keys(document(without(RSA.jwk(), "alg")))
    made = (RSA.signature(DATA, "PS256") for _ in range(10_000))  # each has a salt of its own
    signature = next(one for one in made if one[0] == 0)
    assert found.verifies("PS256", DATA, signature)
    assert not found.verifies("PS256", DATA, signature[1:])


def test_a_public_key_is_never_taken_for_a_password() -> None:
    (found,) = read_keys(document(RSA.jwk()))
    public = RSA.private.public_key()
    for encoding, form in (
        (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
        (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
        (serialization.Encoding.DER, serialization.PublicFormat.PKCS1),
    ):
        signature = hmac.digest(public.public_bytes(encoding, form), DATA, hashlib.sha256)
        assert not found.verifies("HS256", DATA, signature)
    assert not found.verifies("none", DATA, b"")
    with pytest.raises(KeysError):
        read_keys(document({"kty": "oct", "k": encoded(bytes(32)), "alg": "HS256", "kid": "r"}))


def test_a_key_is_used_for_what_its_issuer_gave_it_for() -> None:
    (found,) = read_keys(document(RSA.jwk(alg="PS256")))
    assert found.verifies("PS256", DATA, RSA.signature(DATA, "PS256"))
    assert not found.verifies("RS256", DATA, RSA.signature(DATA, "RS256"))
    (found,) = read_keys(document(KEYS["ES256"].jwk()))
    assert found.algorithms == {"ES256"}


@pytest.mark.parametrize(
    "row",
    [
        RSA.jwk(use="enc"), RSA.jwk(key_ops=["encrypt"]), RSA.jwk(alg="HS256"), RSA.jwk(alg="none"), RSA.jwk(alg=7),
        without(RSA.jwk(), "n"), without(RSA.jwk(), "kty"), RSA.jwk(n="!"), RSA.jwk(n=7), RSA.jwk(e=""),
        RSA.jwk(e=encoded(b"\xff" * 64)), RSA.jwk(n=encoded(b"\xff" * 2000)), SigningKey("w", bits=1024).jwk(),
        KEYS["ES256"].jwk(crv="P-384"), KEYS["ES256"].jwk(crv="secp256k1"), KEYS["ES256"].jwk(x=encoded(bytes(32))),
        KEYS["ES256"].jwk(alg="ES384"), {"kty": "OKP", "crv": "Ed25519", "x": encoded(bytes(32))}, {},
    ],
)
def test_a_key_that_cannot_be_used_is_left_out(row: dict[str, Any]) -> None:
    assert [key.key_id for key in read_keys(document(row, KEYS["ES384"].jwk()))] == ["ES384"]
    with pytest.raises(KeysError, match="none of its 1 keys"):
        read_keys(document(row))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"no", b'{"keys":7}', b"[" * 50_000, b"\xff", document()])
def test_a_document_without_keys_is_refused(data: bytes) -> None:
    with pytest.raises(KeysError):
        read_keys(data)


def test_a_document_of_very_many_keys_is_refused() -> None:
    with pytest.raises(KeysError, match="are the most"):
        read_keys(document(*[{}] * (MAX_KEYS + 1)))
