"""A listener with SASL: clients show who they are, again and again, some with a wrong password, some in disorder.

Nobody is served who did not show a password, and those who did are served as on any other listener.
"""

from __future__ import annotations

import asyncio
from typing import Any

from semel.errors import AuthenticationFailed, ErrorCode, KafkaError
from semel.simulation.play import CLIENT_SETTINGS, PRODUCER_SETTINGS, Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.simulation.workloads.reading import follow
from semel.wire import Malformed
from semel.wire.apis import ApiKey
from semel.wire.frames import parse_response, request_frame
from semel.wire.messages.features import ApiVersionsRequest
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest

TOPIC = "behind-a-door"
PARTITIONS = 2
PORT = 9093
#: Short, so that a client authenticates again several times in a play.
SESSION_MS = 4_000
PASSWORDS = {"keeper": "open", "scribe": "sesame"}
#: Of ApiVersions: whoever asks in it is answered in version 0.
UNKNOWN_VERSION = 99
#: How long somebody in disorder waits for an answer.
ANSWER_S = 2.0


@workload("secured")
class Secured(Workload):
    """Two mechanisms on a second listener, beside the one without."""

    judged_topics = (TOPIC,)
    in_a_cluster = False

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        host = play.brokers[0].machine.name
        self.host = host
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule required "
        play.set_for_brokers(
            {
                "listeners": f"PLAINTEXT://{host}:9092,SECURED://{host}:{PORT}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURED:SASL_PLAINTEXT",
                "listener.name.secured.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
                "listener.name.secured.plain.sasl.jaas.config": plain + f'user_keeper="{PASSWORDS["keeper"]}";',
                "listener.name.secured.connections.max.reauth.ms": SESSION_MS,
            }
        )
        for name, user in (("plain", "keeper"), ("scram", "scribe")):
            play.actor(f"secured-{name}", lambda actor, user=user: self.produce(actor, user))  # type: ignore[misc]
        play.actor("secured-reader", lambda actor: follow(play, actor, TOPIC, PARTITIONS, **self.login("keeper")))
        play.actor("secured-intruder", self.intrude)
        play.actor("secured-disorder", self.disturb)

    def login(self, user: str, password: str | None = None) -> dict[str, object]:
        """The settings of a client."""
        return {
            "bootstrap_servers": f"{self.host}:{PORT}",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN" if user == "keeper" else "SCRAM-SHA-256",
            "sasl_username": user,
            "sasl_password": PASSWORDS[user] if password is None else password,
        }

    async def prepare(self) -> None:
        await self.play.admin(lambda admin: admin.create_topic(TOPIC, partitions=PARTITIONS))
        await self.play.admin(
            lambda admin: admin.set_scram_credentials("scribe", PASSWORDS["scribe"], "SCRAM-SHA-256", iterations=4096)
        )

    async def produce(self, actor: Actor, user: str) -> None:
        """Send what a reader behind the same door follows."""
        play, chance = self.play, actor.chance
        async with play.clients.producer(**PRODUCER_SETTINGS, linger_ms=0, **self.login(user)) as producer:
            while not play.is_ending:
                partition, value = chance.randrange(PARTITIONS), play.next_value(actor.who)
                place = play.sending(actor.who, TOPIC, partition, value)
                try:
                    delivery = await producer.send(TOPIC, value, partition=partition)
                    play.sent(place, (await delivery).offset)
                except AuthenticationFailed as error:
                    play.world.violated(f"secured: {user} was not let in: {error}")
                    return
                except KafkaError:
                    play.counts["sends of unknown fate"] += 1
                await asyncio.sleep(chance.random() * 0.5)

    async def intrude(self, actor: Actor) -> None:
        """Try wrong passwords."""
        play, chance = self.play, actor.chance
        while not play.is_ending:
            user = chance.choice(("keeper", "keeper", "scribe"))
            try:
                async with play.clients.admin(**CLIENT_SETTINGS, **self.login(user, "wrong")) as admin:
                    topics = await admin.list_topics()
                play.world.violated(f"secured: {user} got {topics} with a wrong password")
            except AuthenticationFailed:
                play.counts["intruders refused"] += 1
            except KafkaError:
                play.counts["intruders not heard"] += 1
            await asyncio.sleep(chance.random() * 3)

    # Clients in disorder

    async def disturb(self, actor: Actor) -> None:
        """Connect, say things in any order, and connect again."""
        play, chance, loop = self.play, actor.chance, self.play.world.loop
        while not play.is_ending:
            try:
                async with asyncio.timeout(3):
                    transport, talk = await loop.create_connection(_Talk, self.host, PORT)
            except (OSError, TimeoutError):
                await asyncio.sleep(0.3)
                continue
            talk.transport = transport
            try:
                await _Visit(self, actor, talk).go_on()
            finally:
                transport.abort()
            play.counts["visits in disorder"] += 1
            await asyncio.sleep(chance.random() * 0.5)


class _Talk(asyncio.BufferedProtocol):
    """A connection on which frames are sent and answered, one at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray(8192)
        self._received = bytearray()
        self._answer: asyncio.Future[bytes | None] | None = None
        self.is_open = True
        self.transport: Any = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self._received += self._buffer[:nbytes]
        size = int.from_bytes(self._received[:4], "big")
        if len(self._received) >= 4 + size and self._answer is not None and not self._answer.done():
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            self._answer.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    async def say(self, frame: bytes) -> bytes | None:
        """The answer; None if there is none, and the connection is of no use any more."""
        if not self.is_open:
            return None
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(frame)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._answer
        except TimeoutError:
            self.is_open = False
            return None


class _Visit:
    """One connection of somebody in disorder: what it has shown so far, and what it must not be given."""

    def __init__(self, secured: Secured, actor: Actor, talk: _Talk) -> None:
        self.world = secured.play.world
        self.chance = actor.chance
        self.talk = talk
        #: The messages of an old client have no header.
        self.is_raw = False
        #: Whether it has shown a right password, and not begun anew since.
        self.is_let_in = False
        #: When the session that it has is over for certain.
        self._until_s = 0.0
        self._number = 0

    async def go_on(self) -> None:
        chance = self.chance
        things = (
            self.versions, self.handshake, self.handshake, self.handshake, self.message, self.message, self.ask,
            self.log_in,
        )
        for _ in range(chance.randint(2, 10)):
            await chance.choice(things)()
            if not self.talk.is_open:
                return
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.0, 0.3, 0.3, 1.2, 1.2, SESSION_MS / 1000 + 1)))

    def _was_let_in(self) -> None:
        self.is_let_in = True
        self._until_s = self.world.loop.time() + SESSION_MS / 1000

    async def _request(self, key: ApiKey, version: int, message: Any, body_version: int | None = None) -> Any:
        """The answer to a request, or None."""
        self._number += 1
        frame = bytearray(b"".join(request_frame(key, body_version or version, self._number, "disorder", message)))
        frame[6:8] = version.to_bytes(2, "big")
        answer = await self.talk.say(bytes(frame))
        if answer is None or self.is_raw:
            return None
        try:
            return parse_response(key, 0 if version == UNKNOWN_VERSION else version, answer)[1]
        except Malformed:
            return None  # an answer to what came before it

    async def versions(self) -> None:
        """Ask for the versions, in one that is known or in another."""
        message = ApiVersionsRequest(client_software_name="disorder", client_software_version="1")
        await self._request(ApiKey.API_VERSIONS, self.chance.choice((0, 4, UNKNOWN_VERSION)), message, body_version=4)

    async def handshake(self) -> None:
        """Choose a mechanism, in the way of new clients or of old ones."""
        mechanism = self.chance.choice(("PLAIN", "PLAIN", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-256", "MAGIC"))
        version = self.chance.choice((0, 1, 1))
        was_let_in = self.is_let_in
        answer = await self._request(ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism=mechanism))
        if answer is not None and answer.error_code == ErrorCode.NONE:
            self.is_raw, self.is_let_in = version == 0, False
        else:
            self.is_let_in = was_let_in

    async def message(self) -> None:
        """Send user and password, right or wrong, or something that is neither."""
        is_right = self.chance.random() < 0.7
        password = PASSWORDS["keeper"] if is_right else self.chance.choice(("wrong", "", "\0\0"))
        data = f"\0keeper\0{password}".encode()
        if self.is_raw:
            answer = await self.talk.say(len(data).to_bytes(4, "big") + data)
            is_accepted = answer is not None
            self.is_raw = False
        else:
            reply = await self._request(ApiKey.SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(auth_bytes=data))
            is_accepted = reply is not None and reply.error_code == ErrorCode.NONE
        if is_accepted and not is_right:
            self.world.violated("secured: somebody in disorder was let in with a wrong password")
        if is_accepted:
            self._was_let_in()

    async def log_in(self) -> None:
        """Do it right, and perhaps at once again, which is too soon the second time."""
        for _ in range(self.chance.choice((1, 1, 3))):
            await self._request(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
            data = f"\0keeper\0{PASSWORDS['keeper']}".encode()
            reply = await self._request(ApiKey.SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(auth_bytes=data))
            if reply is not None and reply.error_code == ErrorCode.NONE:
                self._was_let_in()

    async def ask(self) -> None:
        """Ask for something that is served to nobody who has not shown a password."""
        is_over = self.world.loop.time() > self._until_s
        answer = await self._request(ApiKey.METADATA, 9, MetadataRequest(topics=[]))
        if answer is not None and answer.brokers and not self.is_let_in:
            self.world.violated("secured: a request was served before its client had shown a password")
        elif answer is not None and answer.brokers and is_over:
            self.world.violated("secured: a request was served after its client's session had ended")
