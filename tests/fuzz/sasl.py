"""The gate of a listener with SASL: nothing reaches a handler before somebody has shown who they are.

A story of frames goes through a real connection, the real gate and the real mechanisms. What stands behind the gate
only notes what reaches it. Who was let in is judged a second time here, from the message that the mechanism took.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, cast

from semel.broker.dispatch import Call, Dispatcher
from semel.broker.handlers import SERVED
from semel.broker.net.connection import Served, ServerConnection
from semel.broker.net.memory import RECEIVE_BUFFER_BYTES, MemoryPool
from semel.broker.security.gate import Gate
from semel.broker.security.plain import PlainMechanism, users_of_jaas
from semel.broker.security.scram import ScramMechanism
from semel.broker.stored.metadata_store import SCRAM_CREDENTIALS
from semel.broker.stored.scram import ScramStore
from semel.errors import Refused
from semel.machines.security import scram
from semel.machines.security.authentication import Accepted, Authentication, Judgement
from semel.machines.security.principals import ANONYMOUS
from semel.machines.security.scram import ScramClient, ScramError, keys_of, salted_password
from semel.wire import decode
from semel.wire.apis import APIS, ApiKey
from semel.wire.frames import parse_request, parse_response, request_frame
from semel.wire.messages.features import ApiVersionsRequest
from semel.wire.messages.security import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest
from tests.fuzz.target import Draw, Target, expect

#: Of a request before the client is let in, and of one afterwards.
MAX_BEFORE_BYTES, MAX_AFTER_BYTES = 1_000, 8_000
SESSION_MS = 5_000
STEPS = 10
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "", "plain")
MESSAGES = (b"\0alice\0secret", b"alice\0alice\0secret", b"bob\0alice\0secret", b"\0alice\0wrong", b"\0\0\0", b"")
RIGHT = {MESSAGES[0], MESSAGES[1]}
_SALT = b"salt"
_SALTED = {name: salted_password(name, "secret", _SALT, 4096) for name in MECHANISMS[1:3]}
_NUMBERS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_USERS = users_of_jaas('PlainLoginModule required user_alice="secret";', "sasl.jaas.config")


@lru_cache(maxsize=64)
def _known_salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    return salted_password(mechanism, password, salt, iterations)


class Entries:
    """A metadata store with the credential of one user."""

    def get(self, name: str) -> tuple[object, int]:
        if name != SCRAM_CREDENTIALS:
            return None, -1
        rows = []
        for number, mechanism in _NUMBERS.items():
            keys = keys_of(mechanism, _SALTED[mechanism], _SALT, 4096)
            kept = {"salt": keys.salt, "stored_key": keys.stored_key, "server_key": keys.server_key}
            texts = {what: base64.b64encode(data).decode() for what, data in kept.items()}
            rows.append({"user": "alice", "mechanism": number, "iterations": 4096, **texts})
        return rows, 0

    def update(self, name: str, value: object, expected_version: int) -> int:
        return expected_version + 1


_SCRAM = ScramStore(cast(Any, Entries()))


class Loop:
    """A clock that the story sets, and timers that never fire: the end of time is not what is looked at here."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: object, *arguments: object) -> Any:
        return SimpleNamespace(cancel=lambda: None)


class Transport:
    """Notes what was written."""

    def __init__(self) -> None:
        self.is_over, self.reading = False, True
        self.written: list[bytes] = []

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("10.0.0.1", 1)

    def writelines(self, buffers: list[bytes]) -> None:
        expect(not self.is_over, "something is written after the end")
        self.written.append(b"".join(buffers))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.is_over = True

    abort = close


class Behind(Dispatcher):
    """Stands behind the gate."""

    def __init__(self, story: Story) -> None:
        self._broker = cast(Any, story.broker)
        self._story = story

    def serve(self, connection: ServerConnection, frame: memoryview) -> Served:
        story = self._story
        expect(story.was_accepted, "a request reached a handler before the client showed who it is")
        machine = story.machine
        expect(machine.is_authenticated and not machine.is_over, f"a request reached a handler: {machine.state}")
        expect(connection.principal is not ANONYMOUS and connection.who == "User:alice", "a client without a name")
        expect(len(frame) <= MAX_AFTER_BYTES, "a frame that is too large")
        key = int.from_bytes(frame[:2], "big")
        is_late = story.loop.now_s * 1000 > story.accepted_ms + SESSION_MS
        expect(not is_late or key == ApiKey.SASL_HANDSHAKE, "a session has ended, and a request is served")
        story.served += 1
        if key == ApiKey.SASL_HANDSHAKE:
            try:
                header, offset = parse_request(frame)
                request = decode(SaslHandshakeRequest, header.api_version, frame, offset)
            except Refused:
                return None
            story.gate.authenticate_again(request, Call(*header[:3], header.client_id, connection))
        return None


class Watched:
    """A mechanism, and a second opinion about whom it accepts."""

    def __init__(self, mechanism: Any, story: Story) -> None:
        self._mechanism, self._story = mechanism, story
        self._exchange: Any = None

    def begin(self) -> Watched:
        watched = Watched(self._mechanism, self._story)
        watched._exchange = self._mechanism.begin()
        return watched

    def evaluate(self, token: bytes) -> Judgement:
        story = self._story
        story.was_accepted = False
        judgement: Any = self._exchange.evaluate(token)
        if hasattr(judgement, "send"):
            # Nothing has to be waited for here.
            try:
                judgement.send(None)
            except StopIteration as done:
                judgement = done.value
        if isinstance(judgement, Accepted):
            is_plain = isinstance(self._mechanism, PlainMechanism)
            expect(token in RIGHT if is_plain else token in story.proofs, f"accepted for {token!r}")
            story.was_accepted, story.accepted_ms = True, story.loop.now_s * 1000
        return cast(Judgement, judgement)


class Story:
    """One connection, and what its client does."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.was_accepted, self.accepted_ms, self.served = False, 0.0, 0
        self.proofs: set[bytes] = set()
        self.client: ScramClient | None = None
        self.failures: list[BaseException] = []
        broker: Any = SimpleNamespace(
            loop=self.loop,
            settings={"socket.request.max.bytes": MAX_AFTER_BYTES},
            metrics=SimpleNamespace(authentications={"L": 0}, sessions_expired=0),
            audit=SimpleNamespace(authentication_failed=self._audited),
            stores=SimpleNamespace(
                scram=_SCRAM,
                delegation_tokens=SimpleNamespace(tokens=SimpleNamespace(secret=None)),
            ),
            highest_version=lambda key: APIS[key].max_version,
            cluster=None,
            serves=lambda key: key in SERVED,
            now_ms=lambda: int(self.loop.now_s * 1000),
        )
        self.broker = broker
        broker.dispatcher = Behind(self)
        mechanisms: Any = {
            "PLAIN": Watched(PlainMechanism(broker, _USERS, None), self),
            **{name: Watched(ScramMechanism(broker, name), self) for name in _NUMBERS.values()},
        }
        self.machine = Authentication(mechanisms, dict.fromkeys(mechanisms, SESSION_MS))
        self.pool = MemoryPool(1 << 20)
        self.line = Transport()
        self.connection = ServerConnection(broker.dispatcher.serve, self.failures.append, MAX_AFTER_BYTES, self.pool)
        door: Any = SimpleNamespace(
            broker=broker, max_frame_bytes=MAX_BEFORE_BYTES, delay_s=0.0, timeout_s=10.0, mechanisms=mechanisms,
            listener=SimpleNamespace(name="L"),
        )
        self.gate = Gate(door, self.machine, self.connection)
        self.connection.connection_made(cast(Any, self.line))
        self.gate.open()

    def _audited(self, **line: str) -> None:
        expect("secret" not in repr(line), "a password in the audit log")
        repr(line).encode("utf-8", "surrogatepass")

    def arrive(self, data: bytes) -> None:
        taken = 0
        while taken < len(data) and self.line.reading and not self.line.is_over:
            room = self.connection.get_buffer(-1)
            part = data[taken : taken + len(room)]
            room[: len(part)] = part
            self.connection.buffer_updated(len(part))
            taken += len(part)
        if self.failures:
            raise self.failures[0]
        most = RECEIVE_BUFFER_BYTES + (MAX_AFTER_BYTES if self.was_accepted else MAX_BEFORE_BYTES)
        expect(self.pool.used_bytes <= most, f"{self.pool.used_bytes} bytes are held")

    def ask(self, key: int, version: int, message: Any, cut: int = 0) -> None:
        whole = b"".join(request_frame(key, version, 7, "client", message))
        body = whole[4 : len(whole) - cut] if cut else whole[4:]
        self.arrive(len(body).to_bytes(4, "big") + body)

    def last_challenge(self) -> bytes:
        """What the server said last, if that was an answer to SaslAuthenticate."""
        if not self.line.written:
            return b""
        said = self.line.written[-1]
        try:
            _, answer = parse_response(ApiKey.SASL_AUTHENTICATE, 2, said[4:])
        except Refused:
            return said[4:]
        return bytes(cast(SaslAuthenticateResponse, answer).auth_bytes)


def one(data: bytes) -> None:
    draw, story = Draw(data), Story()
    slow, scram.salted_password = scram.salted_password, _known_salted_password
    try:
        for _ in range(STEPS):
            if not draw or story.line.is_over or not story.line.reading:
                break
            act(story, draw)
            expect(story.was_accepted or not story.served or story.machine.principal, "served without a name")
    finally:
        scram.salted_password = slow
    if not story.line.is_over:
        story.gate.close()
        story.connection.connection_lost(None)
    expect(story.pool.used_bytes == 0, "memory is held for a connection that is over")


def act(story: Story, draw: Draw) -> None:
    kind = draw.byte() % 12
    raw = story.machine.is_raw
    if kind == 0:
        version = draw.byte() % 6
        message = ApiVersionsRequest(client_software_name="fuzz", client_software_version=draw.text(4))
        story.ask(ApiKey.API_VERSIONS, min(version, 4), message)
    elif kind in (1, 2):
        story.ask(ApiKey.SASL_HANDSHAKE, kind - 1, SaslHandshakeRequest(mechanism=draw.pick(MECHANISMS)))
    elif kind == 3:
        say(story, draw, draw.pick(MESSAGES), raw)
    elif kind == 4:
        name = draw.pick(MECHANISMS[1:3])
        user, password, is_token = draw.pick(("alice", "bob")), draw.pick(("secret", "wrong")), draw.byte() == 0xFF
        story.client = ScramClient(name, user, password, "nonce", is_token=is_token)
        say(story, draw, story.client.first(), raw)
    elif kind == 5 and story.client is not None:
        try:
            proof = story.client.prove(story.last_challenge())
        except ScramError:
            return
        is_alice = story.client._bare.startswith("n=alice,") and "tokenauth" not in story.client._bare
        if is_alice and story.client._password == "secret":
            story.proofs.add(proof)
        say(story, draw, proof, raw)
    elif kind == 6:
        say(story, draw, draw.short(), raw)
    elif kind == 7:
        body = draw.short()
        story.arrive(len(body).to_bytes(4, "big") + body)
    elif kind == 8:
        key = draw.pick(sorted(APIS))
        body = key.to_bytes(2, "big") + draw.number(1).to_bytes(2, "big") + b"\0\0\0\x07\xff\xff" + draw.short()
        story.arrive(len(body).to_bytes(4, "big") + body)
    elif kind == 9:
        story.arrive(draw.short())
    elif kind == 10:
        story.loop.now_s += draw.byte() / 16
    else:
        size = draw.number(2)
        was_in = story.machine.is_authenticated
        story.arrive(size.to_bytes(4, "big") + bytes(min(size, 2 * MAX_AFTER_BYTES)))
        if size > (MAX_AFTER_BYTES if was_in else MAX_BEFORE_BYTES) and story.line.reading:
            expect(story.line.is_over, f"a frame of {size} bytes is taken")


def say(story: Story, draw: Draw, message: bytes, raw: bool) -> None:
    if raw:
        story.arrive(len(message).to_bytes(4, "big") + message)
    else:
        cut = draw.byte()
        story.ask(ApiKey.SASL_AUTHENTICATE, cut % 3, SaslAuthenticateRequest(auth_bytes=message), cut >> 6)


def seeds() -> list[bytes]:
    hello, plain, raw_plain = b"\x00\x03\x00", b"\x02\x00\x03\x00\x02", b"\x01\x00\x03\x00"
    scram = b"\x02\x01\x04\x00\x00\x00\x00\x02\x05\x02"
    wrong = b"\x02\x01\x04\x00\x00\x01\x00\x02\x05\x02"
    other = b"\x08\x00\x03\x00"
    found = [
        plain,
        raw_plain,
        scram,
        wrong,
        b"\x02\x03",
        b"\x02\x00\x03\x02\x02",
        b"\x02\x02\x04\x01\x00\x00\x00\x02\x05\x02",
    ]
    found = [story + other for story in found] + [hello + story + other for story in found]
    again = b"\x0a\x28" + plain + other
    return [
        *found,
        plain + again * 2,
        plain + b"\x0a\xff" + other,
        plain + again + scram,
        plain + b"\x0b\x10\x00",
        b"\x0b\xff\xff",
        b"\x06\x05abcde\x02",
        b"\x07\x0a\0\x11\0\1\0\0\0\1\xff\xff",
        b"\x09\x03\0\0\0",
        hello * 2,
    ]


TARGET = Target(
    "nothing reaches a handler before authentication, after the session ends or while it is renewed; memory is bounded",
    one,
    seeds,
    max_bytes=200,
)
