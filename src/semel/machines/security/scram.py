"""SCRAM (RFC 5802, RFC 7677), both halves: a password is proven without being sent.

Guarantees:

- The server learns only what it has stored; the client learns that the server has the credential too, before it trusts
  anything the server says.
- A message that is not exactly of the form the RFC gives is refused. The nonce in the last client message must be the
  one that the server gave out (CVE-2024-56128), and proofs are compared in constant time.
- A user that does not exist is answered like one that does, up to the proof: who asks cannot tell the two apart.
- An authorization id other than the user's own name is refused (CVE-2017-12610).

Nonces and salts arrive from outside: this module has no randomness of its own.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import NamedTuple

#: The mechanisms, with the hash each one uses.
DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: Kafka's number of each mechanism in its requests.
MECHANISM_NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
#: Iterations that a client agrees to. Fewer make a password easy to guess; more let a false server keep a client busy.
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 1_000_000
#: In bytes. What is larger is not a SCRAM message of anybody we know.
MAX_MESSAGE_BYTES = 16_384

_NONCE, _BASE64, _EXTENSIONS = r"[!-+\--~]+", r"[A-Za-z0-9+/=]+", r"(?:,[A-Za-z]+=[^,]*)*"
_CLIENT_FIRST = re.compile(r"(?P<binding>n|y|p=[A-Za-z0-9.-]+),(?:a=(?P<authzid>[^,]*))?,(?P<bare>.*)", re.DOTALL)
_CLIENT_FIRST_BARE = re.compile(rf"n=(?P<user>[^,]+),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS})")
_SERVER_FIRST = re.compile(rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,9}}){_EXTENSIONS}")
_CLIENT_FINAL = re.compile(
    rf"(?P<unproven>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}?),p=(?P<proof>{_BASE64})"
)
_SERVER_FINAL = re.compile(rf"(?:v=(?P<signature>{_BASE64})|e=(?P<error>[^,]+)){_EXTENSIONS}")


class ScramError(Exception):
    """An exchange that cannot go on. The text is for the log; a peer is told nothing that helps it to guess."""


class WrongAuthorizationId(ScramError):
    """The client asks to be somebody else than the user whose password it has."""


class ScramKeys(NamedTuple):
    """What a server stores of a password: enough to check it, too little to use it."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """The password as both sides use it, hashed as it is given, as Kafka does.

    This is meant to take long: run it beside the event loop.
    """
    return hashlib.pbkdf2_hmac(DIGESTS[mechanism], password.encode(), salt, iterations)


def keys_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramKeys:
    """What a server stores."""
    digest = DIGESTS[mechanism]
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    return ScramKeys(iterations, salt, stored_key, hmac.digest(salted, b"Server Key", digest))


def escape_name(name: str) -> str:
    """A user's name as a message carries it.

    >>> escape_name("a,b=c")
    'a=2Cb=3Dc'
    """
    return name.replace("=", "=3D").replace(",", "=2C")


def unescape_name(text: str) -> str:
    """A user's name out of a message; an equals sign that escapes nothing is refused."""
    if re.search(r"=(?!2C|3D)", text):
        raise ScramError("a user name has a wrong escape")
    return text.replace("=2C", ",").replace("=3D", "=")


def _text(data: bytes) -> str:
    if len(data) > MAX_MESSAGE_BYTES:
        raise ScramError("the message is too long")
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise ScramError("the message is not UTF-8") from error


def _base64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ScramError(f"{what} is not base64") from error


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


class ScramStep(enum.Enum):
    """Where an exchange stands."""

    FIRST = "nothing was said"
    PROOF = "the proof is awaited"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The first message of a client, taken apart."""

    user: str
    nonce: str
    authorization_id: str
    #: Kafka's clients say here that the user is a delegation token.
    is_token: bool
    header: str
    bare: str


def read_client_first(data: bytes) -> ClientFirst:
    """Take a client's first message apart, or refuse it."""
    outer = _CLIENT_FIRST.fullmatch(_text(data))
    if outer is None:
        raise ScramError("the first message is malformed")
    if outer["binding"].startswith("p="):
        raise ScramError("channel binding is not offered")
    inner = _CLIENT_FIRST_BARE.fullmatch(outer["bare"])
    if inner is None:
        raise ScramError("the first message is malformed or asks for an extension that is not known")
    user = unescape_name(inner["user"])
    authorization_id = unescape_name(outer["authzid"] or "")
    if authorization_id not in ("", user):
        raise WrongAuthorizationId("the authorization id is not the user's own name")
    extensions = dict(part.split("=", 1) for part in inner["extensions"].split(",") if part)
    header = f"{outer['binding']},{'' if outer['authzid'] is None else 'a=' + outer['authzid']},"
    return ClientFirst(
        user, inner["nonce"], authorization_id, extensions.get("tokenauth", "").lower() == "true", header, outer["bare"]
    )


class ScramServer:
    """A server's half of one exchange."""

    __slots__ = ("_auth_message_start", "_digest", "_first", "_keys", "_nonce", "step", "user")

    def __init__(self, mechanism: str) -> None:
        self._digest = DIGESTS[mechanism]
        self.step = ScramStep.FIRST
        self.user = ""
        self._first: ClientFirst | None = None

    def begin(self, first: ClientFirst, keys: ScramKeys, server_nonce: str) -> bytes:
        """Answer the first message with salt and iterations of the user's credential.

        For a user that does not exist, give keys that no password has (see `keys_of_nobody`).
        """
        if self.step is not ScramStep.FIRST:
            self.step = ScramStep.FAILED
            raise ScramError("the exchange has begun already")
        self._first, self._keys, self.user = first, keys, first.user
        self._nonce = first.nonce + server_nonce
        challenge = f"r={self._nonce},s={base64.b64encode(keys.salt).decode()},i={keys.iterations}"
        self._auth_message_start = f"{first.bare},{challenge}"
        self.step = ScramStep.PROOF
        return challenge.encode()

    def finish(self, data: bytes) -> bytes:
        """Check the proof, and answer with the server's own."""
        if self.step is not ScramStep.PROOF or self._first is None:
            self.step = ScramStep.FAILED
            raise ScramError("a proof came before the first message")
        self.step = ScramStep.FAILED
        final = _CLIENT_FINAL.fullmatch(_text(data))
        if final is None:
            raise ScramError("the last message is malformed")
        if not hmac.compare_digest(final["nonce"].encode(), self._nonce.encode()):
            raise ScramError("the nonce is not the one that was given out")
        if _base64(final["binding"], "the channel binding") != self._first.header.encode():
            raise ScramError("the channel binding is not that of the first message")
        message = f"{self._auth_message_start},{final['unproven']}".encode()
        proof = _base64(final["proof"], "the proof")
        signature = hmac.digest(self._keys.stored_key, message, self._digest)
        if len(proof) != len(signature):
            raise ScramError("the proof has the wrong length")
        client_key = _xor(proof, signature)
        if not hmac.compare_digest(hashlib.new(self._digest, client_key).digest(), self._keys.stored_key):
            raise ScramError("the proof is wrong")
        self.step = ScramStep.DONE
        return b"v=" + base64.b64encode(hmac.digest(self._keys.server_key, message, self._digest))


def keys_of_nobody(
    mechanism: str, user: str, secret: bytes, iterations: int = MIN_ITERATIONS, salt_bytes: int = 26
) -> ScramKeys:
    """Keys for a user that does not exist: the same for each attempt, and no password leads to them.

    `secret` is the server's own. Without it nobody can tell these salts from real ones, if `iterations` and
    `salt_bytes` are those of real users.
    """
    digest = DIGESTS[mechanism]
    salt = hashlib.shake_256(hmac.digest(secret, b"salt " + user.encode(), "sha256")).digest(salt_bytes)
    return ScramKeys(
        iterations,
        salt,
        hmac.digest(secret, b"stored key " + user.encode(), digest),
        hmac.digest(secret, b"server key " + user.encode(), digest),
    )


class ScramClient:
    """A client's half of one exchange."""

    __slots__ = ("_bare", "_digest", "_header", "_mechanism", "_nonce", "_password", "_signature", "step")

    def __init__(
        self, mechanism: str, user: str, password: str, nonce: str, *, is_token: bool = False
    ) -> None:
        self._mechanism = mechanism
        self._digest = DIGESTS[mechanism]
        self._password = password
        self._nonce = nonce
        self._header = "n,,"
        self._bare = f"n={escape_name(user)},r={nonce}" + (",tokenauth=true" if is_token else "")
        self._signature = b""
        self.step = ScramStep.FIRST

    def first(self) -> bytes:
        """The first message."""
        self.step = ScramStep.PROOF
        return (self._header + self._bare).encode()

    def prove(self, data: bytes) -> bytes:
        """Answer the server's salt with the proof. This hashes the password many times: run it beside the loop."""
        self.step = ScramStep.FAILED
        text = _text(data)
        challenge = _SERVER_FIRST.fullmatch(text)
        if challenge is None:
            raise ScramError("the server's first message is malformed")
        nonce = challenge["nonce"]
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramError("the server's nonce does not continue ours")
        iterations = int(challenge["iterations"])
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ScramError(
                f"the server asks for {iterations} iterations; safe are {MIN_ITERATIONS} to {MAX_ITERATIONS}"
            )
        salt = _base64(challenge["salt"], "the salt")
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        unproven = f"c={base64.b64encode(self._header.encode()).decode()},r={nonce}"
        message = f"{self._bare},{text},{unproven}".encode()
        keys = keys_of(self._mechanism, salted, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        proof = _xor(client_key, hmac.digest(keys.stored_key, message, self._digest))
        self._signature = hmac.digest(keys.server_key, message, self._digest)
        self.step = ScramStep.PROOF
        return f"{unproven},p={base64.b64encode(proof).decode()}".encode()

    def check(self, data: bytes) -> None:
        """Check the server's own proof: only then is the server who it should be."""
        if not self._signature:
            raise ScramError("the server ended the exchange before it was asked for its proof")
        self.step = ScramStep.FAILED
        final = _SERVER_FINAL.fullmatch(_text(data))
        if final is None:
            raise ScramError("the server's last message is malformed")
        if final["error"] is not None:
            raise ScramError(f"the server refused the proof: {final['error']}")
        if not hmac.compare_digest(_base64(final["signature"], "the server's proof"), self._signature):
            raise ScramError("the server's proof is wrong: it does not have this user's credential")
        self.step = ScramStep.DONE
