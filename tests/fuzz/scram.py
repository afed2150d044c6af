"""SCRAM: any bytes are refused by either half, and an exchange that somebody tampered with never ends well."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from functools import lru_cache

from semel.machines.security import scram
from semel.machines.security.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramClient,
    ScramError,
    ScramServer,
    ScramStep,
    keys_of,
    keys_of_nobody,
    read_client_first,
)
from tests.fuzz.target import Draw, Target, expect

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SALT = b"salt-of-a-user"


@lru_cache(maxsize=4096)
def quick_salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Stands in for the slow hash: as different for different arguments, and a thousand times faster."""
    expect(MIN_ITERATIONS <= iterations <= MAX_ITERATIONS, f"a client hashes {iterations} times")
    return hashlib.new(scram.DIGESTS[mechanism], repr((password, salt, iterations)).encode()).digest()


def outcome(call: object, *arguments: object) -> bytes | None:
    """What a half says, or None where it refuses."""
    try:
        return call(*arguments) or b""  # type: ignore[operator, no-any-return]
    except ScramError:
        return None


def tampered(draw: Draw, message: bytes) -> bytes:
    """The message, or another one in its place."""
    kind = draw.byte() % 8
    if kind < 4:
        return message
    if kind == 4:
        return draw.short()
    at = draw.byte() % (len(message) + 1)
    if kind == 5:
        return message[:at] + draw.short(16) + message[at:]
    if kind == 6:
        return message[:at] + draw.short(16) + message[at + 1 :]
    return message[:at]


def one(data: bytes) -> None:
    slow, scram.salted_password = scram.salted_password, quick_salted_password
    try:
        tell(Draw(data))
    finally:
        scram.salted_password = slow


def tell(draw: Draw) -> None:
    mechanism = draw.pick(MECHANISMS)
    user, password = draw.text(20).replace("\0", ""), "secret"
    knows_password, exists = draw.byte() % 4 != 3, draw.byte() % 4 != 3
    iterations = MIN_ITERATIONS + draw.byte()
    client = ScramClient(mechanism, user, password if knows_password else "wrong", "client-nonce")
    server = ScramServer(mechanism)
    keys = keys_of_nobody(mechanism, user, b"secret of the server")
    if exists:
        keys = keys_of(mechanism, quick_salted_password(mechanism, password, SALT, iterations), SALT, iterations)
    was_changed = False

    first = client.first()
    arrived = tampered(draw, first)
    was_changed |= arrived != first
    try:
        taken = read_client_first(arrived)
    except ScramError:
        expect(was_changed or not user, "a client's own first message is refused")
        expect(outcome(server.finish, draw.short()) is None, "a proof is taken before the first message")
        return
    expect(was_changed or taken.user == user, "a name is another after it was escaped")
    expect(taken.authorization_id in ("", taken.user), "an authorization id of somebody else")
    challenge = server.begin(taken, keys, "server-nonce")

    arrived = tampered(draw, challenge)
    was_changed |= arrived != challenge
    proof = outcome(client.prove, arrived)
    if proof is None:
        expect(was_changed, "a server's own challenge is refused")
        proof = draw.short()
        was_changed = True
    arrived = tampered(draw, proof)
    was_changed |= not _same(arrived, proof, b",p=")
    final = outcome(server.finish, arrived)
    expect((final is not None) == (server.step is ScramStep.DONE), "a server says something else than it thinks")
    if final is None:
        expect(was_changed or not knows_password or not exists, "a proof that is right is refused")
        expect(outcome(server.finish, arrived) is None, "a server takes a second proof")
        outcome(client.check, draw.short())
    else:
        expect(knows_password and exists and not was_changed, "a proof is taken that is not right")
        back = tampered(draw, final)
        said = outcome(client.check, back)
        expect(said is None or _same(back, final, b"v="), "a client takes a wrong proof")
        expect(said is not None or back != final, "a client refuses the right proof")
    expect(final is not None or client.step is not ScramStep.DONE, "a client is content with a server that refused")


def _same(left: bytes, right: bytes, sign: bytes) -> bool:
    """Whether two messages are the same but for how the base64 after `sign` is written."""
    if left == right:
        return True
    (before, found, proof), (other_before, other_found, other_proof) = left.partition(sign), right.partition(sign)
    if before != other_before or not found or not other_found:
        return False
    try:
        # A server may append extensions to its last message.
        plain = base64.b64decode(proof.partition(b",")[0] if sign == b"v=" else proof, validate=True)
        return hmac.compare_digest(plain, base64.b64decode(other_proof, validate=True))
    except binascii.Error:
        return False


def seeds() -> list[bytes]:
    found = []
    for mechanism in range(2):
        for user in (b"alice", b"a,b=c", "J\u00f6rg".encode()):
            for changed in range(5):
                steps = [b"\0"] * 4
                if changed < 4:
                    steps[changed] = b"\x05\x10\x02,x" if changed % 2 else b"\x06\x08\x01y"
                found.append(bytes([mechanism, len(user)]) + user + b"\0\0\x07" + b"".join(steps))
    found.append(b"\0\x05alice\0\0\0\x04\x1dn,a=bob,n=alice,r=abc,m=x=yxx")
    found.append(b"\0\x05alice\0\0\0\x00\x04\x40r=client-nonceX,s=c2FsdA==,i=4096,ext=1")
    found.append(b"\0\x05alice\0\0\0\x00\x04\x30r=client-nonceX,s=c2FsdA==,i=999999999")
    return found


TARGET = Target(
    "an exchange ends well only if nothing in it was changed and the password is right",
    one,
    seeds,
    max_bytes=320,
)
