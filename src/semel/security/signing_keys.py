"""The keys that an issuer of tokens signs with (JWKS, RFC 7517), and the check of a signature (RFC 7518).

Guarantees:

- A key is used for its own kind of signature only, and for the algorithm that the issuer gave it for, if it did. A
  public key is never taken for a password (HS256), and a token without a signature (`none`) has none to check.
- Keys that are too weak, are not for signatures or cannot be read are left out. A set without a usable key is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

#: Which curve each algorithm of elliptic curves needs, and how many bytes a number has on it.
_CURVES = {"ES256": ("P-256", 32), "ES384": ("P-384", 48), "ES512": ("P-521", 66)}
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ALGORITHMS = (*_RSA, *_CURVES)
#: In bits. Fewer are not safe; more take too long to check.
_MIN_RSA_BITS, _MAX_RSA_BITS = 2048, 8192
#: A document with more is not one of keys.
MAX_KEYS = 1000


class KeysError(ValueError):
    """A document that has no keys in it that can be used."""


class SigningKey(NamedTuple):
    """The public half of a key."""

    key_id: str | None
    #: The algorithms that it may be used for.
    algorithms: frozenset[str]
    public: RSAPublicKey | EllipticCurvePublicKey

    def verifies(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Whether this key made the signature."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, padding
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
        from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

        if algorithm not in self.algorithms:
            return False
        digests: dict[str, hashes.HashAlgorithm]
        digests = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
        digest = digests[algorithm[2:]]
        try:
            if isinstance(self.public, RSAPublicKey):
                # OpenSSL also takes a signature without its leading zeros, which RFC 8017 (8.1.2, 8.2.2) refuses.
                if len(signature) != (self.public.key_size + 7) // 8:
                    return False
                padded: padding.AsymmetricPadding = padding.PKCS1v15()
                if algorithm.startswith("PS"):
                    padded = padding.PSS(padding.MGF1(digest), digest.digest_size)
                self.public.verify(signature, signed, padded, digest)
                return True
            size = _CURVES[algorithm][1]
            if len(signature) != 2 * size:
                return False
            r, s = (int.from_bytes(half, "big") for half in (signature[:size], signature[size:]))
            self.public.verify(encode_dss_signature(r, s), signed, ec.ECDSA(digest))
        except InvalidSignature:
            return False
        return True


def read_keys(data: bytes) -> tuple[SigningKey, ...]:
    """The keys of a JWKS document that can be used here."""
    try:
        document = json.loads(data)
        rows = document["keys"]
        if not isinstance(rows, list):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise KeysError('it is not a JWKS document: {"keys": [...]}') from None
    if len(rows) > MAX_KEYS:
        raise KeysError(f"it has {len(rows)} keys; {MAX_KEYS} are the most")
    found = [key for row in rows if isinstance(row, dict) and (key := _key(row)) is not None]
    if not found:
        raise KeysError(f"none of its {len(rows)} keys can be used to check a signature by {', '.join(ALGORITHMS)}")
    return tuple(found)


def _key(row: dict[str, Any]) -> SigningKey | None:
    """A key, if it is one for signatures that can be used."""
    operations = row.get("key_ops")
    if row.get("use") not in (None, "sig") or (isinstance(operations, list) and "verify" not in operations):
        return None
    try:
        algorithms, public = _rsa(row) if row.get("kty") == "RSA" else _elliptic(row)
    except (KeyError, TypeError, ValueError):
        return None
    if (own := row.get("alg")) is not None:
        algorithms &= {own} if isinstance(own, str) else set()
    key_id = row.get("kid")
    return SigningKey(key_id if isinstance(key_id, str) else None, algorithms, public) if algorithms else None


def _rsa(row: dict[str, Any]) -> tuple[frozenset[str], RSAPublicKey]:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers

    modulus = _number(row["n"])
    if not _MIN_RSA_BITS <= modulus.bit_length() <= _MAX_RSA_BITS:
        raise ValueError("the key is too small or too large")
    exponent = _number(row["e"])
    if exponent.bit_length() > 64:
        raise ValueError("the exponent is too large")
    return frozenset(_RSA), RSAPublicNumbers(exponent, modulus).public_key()


def _elliptic(row: dict[str, Any]) -> tuple[frozenset[str], EllipticCurvePublicKey]:
    from cryptography.hazmat.primitives.asymmetric import ec

    if row["kty"] != "EC":
        raise ValueError("neither an RSA key nor one of an elliptic curve")
    algorithm = {curve: name for name, (curve, _) in _CURVES.items()}[row["crv"]]
    curves: dict[str, ec.EllipticCurve]
    curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    numbers = ec.EllipticCurvePublicNumbers(_number(row["x"]), _number(row["y"]), curves[algorithm])
    return frozenset((algorithm,)), numbers.public_key()


def _number(text: str) -> int:
    try:
        return int.from_bytes(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True), "big")
    except binascii.Error as error:
        raise ValueError("not base64") from error
