"""Clients that have not shown who they are, and clients that never will: what they may cost, and that others do not
notice. Time is not measured here where it could be counted instead."""

from __future__ import annotations

import gc
import logging
import os
import random
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from semel.broker.embedded import Broker
from semel.broker.net.memory import RECEIVE_BUFFER_BYTES
from semel.broker.net.tls import AHEAD_BYTES, ENCRYPTED_TOGETHER_BYTES, TlsConnection
from semel.broker.refusals import LINES_PER_SECOND
from semel.broker.security import plain as plain_module
from semel.broker.tls_listeners import read_side
from semel.wire.frames import parse_response, request_frame
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.broker.raw import _KEYS, APIS, batch, fetch_request, produce_request
from tests.security.conftest import PASSWORD, USER, Locks
from tests.security.sasl_talk import Talk, plain
from tests.security.tls_peers import BioPeer, TlsRaw, TlsTalk, client_hello, dial, ended, on_loop, trusting
from tests.support.waiting import until

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def locks(tmp_path_factory: pytest.TempPathFactory) -> Locks:
    return Locks(tmp_path_factory.mktemp("hostile"))


class Behind:
    """A broker with TLS and SASL listeners, and where they are."""

    def __init__(self, locks: Locks, broker: Broker) -> None:
        self.locks, self.broker = locks, broker
        self.at = {
            one.name: f"localhost:{one.endpoint[1]}" for one in broker.server.listening.listeners
        }

    def connections(self) -> int:
        return int(on_loop(self.broker, lambda: len(self.broker.server.connections)))

    def only_one(self) -> object:
        (found,) = self.broker.server.connections._open
        return found

    def is_at_rest(self) -> bool:
        """Whether nobody is connected and nothing is held."""
        server = self.broker.server
        return bool(
            on_loop(
                self.broker,
                lambda: not len(server.connections)
                and server.pool.used_bytes == 0
                and server.unread.used_bytes == 0
                and not server.pool.watched,
            )
        )


def settings_of(locks: Locks, **more: object) -> dict[str, object]:
    jaas = f'{JAAS} user_{USER}="{PASSWORD.replace(chr(34), chr(92) + chr(34))}";'
    found: dict[str, object] = {
        "listeners": "SSL://127.0.0.1:0,SASL_SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "ssl.keystore.location": str(locks.broker_file),
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": jaas,
    }
    return found | {name.replace("_", "."): value for name, value in more.items()}


@pytest.fixture(scope="module")
def behind(locks: Locks) -> Iterator[Behind]:
    with Broker(settings=settings_of(locks)) as broker:
        yield Behind(locks, broker)


@pytest.fixture
def hurried(locks: Locks) -> Iterator[Behind]:
    """Whoever has not authenticated is disconnected soon."""
    with Broker(settings=settings_of(locks, semel_authentication_timeout_ms=700)) as broker:
        yield Behind(locks, broker)


def framed(message: object, version: int = 1) -> bytes:
    key = _KEYS[type(message).__name__.removesuffix("Request")]
    return b"".join(request_frame(key, version, 1, "hostile", message))


# What may be held


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_before_authentication_a_connection_holds_no_more_than_its_limit(behind: Behind, listener: str) -> None:
    most = 512 * 1024
    with ExitStack() as stack:
        if listener == "SASL_SSL":
            peer = stack.enter_context(BioPeer(behind.at[listener], trusting(behind.locks)).shake_hands())
            sending, seal = peer.socket, peer.sealed
        else:
            sending, seal = stack.enter_context(dial(behind.at[listener])), bytes
        sending.sendall(seal(struct.pack(">i", most) + bytes(most - 1)))
        until(lambda: behind.connections() == 1, what="the connection")
        open_one = behind.only_one()
        arrived = 4 + most - 1
        until(lambda: open_one._received_bytes == arrived, what="all of it to be read")  # type: ignore[attr-defined]
        assert open_one.held_bytes <= 4 + most + RECEIVE_BUFFER_BYTES  # type: ignore[attr-defined]
    until(behind.is_at_rest, what="everything to be given back")
    with Talk(behind.at["SASL_PLAINTEXT"]) as talk:
        talk.socket.sendall(struct.pack(">i", most + 1))
        assert talk.is_closed()


def test_a_handshake_that_never_ends_is_not_collected(behind: Behind) -> None:
    """A ClientHello that claims 16 MB, in records of 16 KB."""
    part = os.urandom(16000)
    record = b"\x16\x03\x01" + struct.pack(">H", len(part)) + part
    first = b"\x16\x03\x01" + struct.pack(">H", 4) + b"\x01\xff\xff\xff"
    with dial(behind.at["SSL"]) as peer:
        sent = len(first)
        with pytest.raises((ConnectionError, TimeoutError)):
            peer.sendall(first)
            while sent < 20_000_000:
                peer.sendall(record)
                sent += len(record)
        # Some of it was only in the sockets.
        assert sent < 20_000_000
        assert ended(peer)
    until(behind.is_at_rest, what="the connection to be gone")


@pytest.mark.parametrize("step", ["nothing", "half a hello", "hello", "half a record", "SASL handshake"])
def test_a_handshake_that_stops_is_dropped_at_its_deadline(hurried: Behind, step: str) -> None:
    context = trusting(hurried.locks)
    with ExitStack() as stack:
        if step in ("half a record", "SASL handshake"):
            peer = stack.enter_context(BioPeer(hurried.at["SASL_SSL"], context).shake_hands())
            sealed = peer.sealed(framed(SaslHandshakeRequest(mechanism="PLAIN")))
            peer.socket.sendall(sealed if step == "SASL handshake" else sealed[:-7])
            sockets = [peer.socket]
        else:
            sockets = [stack.enter_context(dial(hurried.at[name])) for name in ("SSL", "SASL_SSL")]
            said = {"nothing": b"", "half a hello": client_hello()[:99], "hello": client_hello()}[step]
            for one in sockets:
                one.sendall(said)
        for one in sockets:
            one.settimeout(30)
            assert ended(one)
    until(hurried.is_at_rest, what="everything to be given back")
    with TlsTalk(hurried.at["SASL_SSL"], context) as talk:
        assert talk.plain(USER, PASSWORD).error_code == 0
        with dial(hurried.at["SASL_SSL"]) as later:
            later.settimeout(30)
            assert ended(later)  # so the deadline of the one before would be over, too
        assert talk.ask(MetadataRequest(topics=None)).brokers


def test_whoever_has_authenticated_has_no_deadline_left(hurried: Behind) -> None:
    with TlsRaw(hurried.at["SSL"], trusting(hurried.locks)) as raw:
        raw.create("quiet")
        connection = hurried.only_one()
        assert connection.transport._deadline is None  # type: ignore[attr-defined]


# Many at once


def test_a_thousand_slow_handshakes_leave_others_served(behind: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has had the broker's answer, with the work of a private key in it, and says nothing more."""
    hello = client_hello()
    with ExitStack() as stack, TlsRaw(behind.at["SSL"], trusting(behind.locks)) as early:
        early.create("served")
        slow = []
        for _ in range(1000):
            slow.append(stack.enter_context(dial(behind.at["SSL"])))
            slow[-1].sendall(hello)
            if len(slow) % 100 == 0:
                assert early.produce("served", batch(b"%d" % len(slow))).error_code == 0
        until(lambda: behind.connections() == 1001, what="all of them")
        assert slow[-1].recv(1)
        with TlsRaw(behind.at["SSL"], trusting(behind.locks)) as late:
            assert len(late.values("served")) == 10
    until(behind.is_at_rest, what="everything to be given back")


def test_handshakes_share_the_turns_of_the_loop(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which each handshake takes a millisecond, no turn has more than ten of them."""
    broker = Broker(settings=settings_of(locks))
    ticks = [0.0]

    def clock() -> float:
        ticks[0] += 0.0005
        return ticks[0]

    broker.server.turns.clock = clock
    in_turn = [0]
    shake = TlsConnection._shake_hands

    def counted(self: TlsConnection, tls: ssl.SSLObject) -> None:
        in_turn[-1] += 1
        shake(self, tls)

    monkeypatch.setattr(TlsConnection, "_shake_hands", counted)
    with broker:
        loop = broker.server.loop

        def tick() -> None:
            in_turn.append(0)
            loop.call_soon(tick)

        hello = client_hello()
        address = f"localhost:{broker.server.listening.listeners[0].endpoint[1]}"
        with ExitStack() as stack:
            slow = [stack.enter_context(dial(address)) for _ in range(200)]
            until(lambda: len(broker.server.connections) == 200, what="all of them")

            def block() -> None:
                # All hellos arrive while the loop is held, so that it finds them together.
                for one in slow:
                    one.sendall(hello)
                tick()

            loop.call_soon_threadsafe(block)
            for one in slow:
                assert one.recv(1)
    assert sum(in_turn) == 200
    assert max(in_turn) <= 25  # without turns it would be all 200


# Those who are no clients

SCANS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "SSLv2": bytes.fromhex("802e0103010015000000100100800200800300800400800500800600400700c0"),
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a request": framed(MetadataRequest(topics=[]), 1),
    "random": b"\x99" + random.Random(1).randbytes(5000),
    "zeros": bytes(4096),
}


@pytest.mark.parametrize("scan", list(SCANS))
def test_a_scanner_on_a_tls_port_is_ended_before_there_is_any_tls(
    behind: Behind, scan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    wrapped = ssl.SSLContext.wrap_bio
    monkeypatch.setattr(
        ssl.SSLContext, "wrap_bio", lambda *given, **named: made.append(1) or wrapped(*given, **named)
    )
    for listener in ("SSL", "SASL_SSL"):
        with dial(behind.at[listener]) as peer:
            peer.sendall(SCANS[scan])
            assert ended(peer)
    assert not made
    until(behind.is_at_rest, what="the connection to be gone")


def test_what_begins_like_tls_and_is_none_is_ended(behind: Behind) -> None:
    for said in (b"\x16\x03\x01\xff\xff" + bytes(100), b"\x16" + bytes(100), b"\x16\x03\x01\x00\x05hello"):
        with dial(behind.at["SSL"]) as peer:
            peer.sendall(said)
            assert ended(peer)


def test_the_log_of_a_scan_is_bounded(behind: Behind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="semel.broker.refusals")
    refused_before, began = behind.broker.server.metrics.refused, time.monotonic()
    for _ in range(300):
        with dial(behind.at["SSL"]) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert ended(peer)
    took_s = time.monotonic() - began
    until(lambda: "more connections in the last second" in caplog.text, what="the line for those left out")
    lines = [record for record in caplog.records if record.name == "semel.broker.refusals"]
    assert len(lines) <= (LINES_PER_SECOND + 1) * (int(took_s) + 3)
    assert behind.broker.server.metrics.refused == refused_before + 300


def test_a_wrong_protocol_makes_one_warning_a_minute_and_says_what_to_set(
    locks: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(settings=settings_of(locks)) as broker:
        behind = Behind(locks, broker)
        for _ in range(5):
            for listener, said in (("PLAINTEXT", client_hello()), ("SASL_PLAINTEXT", client_hello()),
                                   ("SSL", framed(MetadataRequest(topics=[])))):
                with dial(behind.at[listener]) as peer:
                    peer.sendall(said)
                    assert ended(peer)
    warned = [one.message for one in caplog.records if one.levelno == logging.WARNING and "closing" in one.message]
    assert len(warned) == 3
    assert all("security.protocol" in one for one in warned)


# TLS's own dangers


def test_compression_and_renegotiation_are_off(behind: Behind) -> None:
    server = behind.broker.server
    context = read_side(server.settings, server.listening.listeners[0]).context
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.options & ssl.OP_NO_RENEGOTIATION
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        with TlsRaw(behind.at["SSL"], trusting(behind.locks, version=version)) as raw:
            assert raw.socket.compression() is None


def test_bytes_that_were_changed_on_their_way_end_the_connection(behind: Behind) -> None:
    with BioPeer(behind.at["SSL"], trusting(behind.locks)).shake_hands() as peer:
        sealed = bytearray(peer.sealed(framed(MetadataRequest(topics=[]))))
        sealed[-3] ^= 1
        peer.socket.sendall(sealed)
        assert ended(peer.socket)
    until(behind.is_at_rest, what="everything to be given back")


# Answers that are not read


def test_answers_that_a_tls_client_does_not_read_stay_within_bounds(behind: Behind) -> None:
    with TlsRaw(behind.at["SSL"], trusting(behind.locks)) as raw:
        raw.create("large")
        for _ in range(8):
            assert raw.produce("large", batch(os.urandom(1_000_000))).error_code == 0
        asked = fetch_request({("large", 0): 0}, partition_max_bytes=8_000_000, max_wait_ms=0)
        sent = raw.send_together(*[(asked, 12)] * 10)
        server = behind.broker.server
        until(lambda: on_loop(behind.broker, lambda: server.connections.not_read) == 1, what="the broker to stop")
        (open_one,) = server.connections._open
        transport = open_one.transport
        assert transport._raw.get_write_buffer_size() <= AHEAD_BYTES + 2 * ENCRYPTED_TOGETHER_BYTES
        # One answer, not ten.
        assert transport.get_write_buffer_size() <= 9_000_000
        assert on_loop(behind.broker, lambda: server.unread.used_bytes) <= 9_000_000
        for one in sent:
            data = raw.receive(one).responses[0].partitions[0]
            assert len(data.records) > 7_000_000
    until(behind.is_at_rest, what="everything to be given back")


def test_a_client_that_asks_for_new_keys_and_does_not_read_is_bounded(
    behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client can be told to do it here, so what OpenSSL would say is put into its mouth."""
    read = TlsConnection._read
    reads = 0

    def talkative(self: TlsConnection, tls: ssl.SSLObject) -> None:
        nonlocal reads
        reads += 1
        self._outgoing.write(bytes(100_000))
        read(self, tls)

    monkeypatch.setattr(TlsConnection, "_read", talkative)
    with BioPeer(behind.at["SSL"], trusting(behind.locks)).shake_hands() as peer:
        piece = peer.sealed(b"\0\0\0\x0a")
        with pytest.raises(ConnectionError):
            for number in range(2000):
                peer.socket.sendall(piece[:1])
                piece = piece[1:] or peer.sealed(b"\0")
                until(lambda seen=number: reads > seen or behind.is_at_rest(), what="each byte to be read alone")  # type: ignore[misc]
    until(behind.is_at_rest, what="everything to be given back")


# Refusals


def test_a_failed_authentication_waits_holds_nothing_and_keeps_nobody_else_waiting(locks: Locks) -> None:
    with Broker(settings=settings_of(locks, connection_failed_authentication_delay_ms=1500)) as broker:
        behind = Behind(locks, broker)
        with TlsTalk(behind.at["SASL_SSL"], trusting(locks)) as wrong:
            wrong.handshake("PLAIN")
            began = time.monotonic()
            sent = wrong.send(SaslAuthenticateRequest(auth_bytes=plain(USER, "wrong" * 50_000)), 2)
            until(lambda: broker.server.metrics.failed_authentications["SASL_SSL"] == 1, what="the refusal")
            (open_one,) = broker.server.connections._open
            assert open_one.held_bytes == 0 and len(open_one._buffer) == 0
            with TlsTalk(behind.at["SASL_SSL"], trusting(locks)) as right:
                assert right.plain(USER, PASSWORD).error_code == 0
            assert wrong.receive(sent).error_code == 58
            assert time.monotonic() - began >= 1.5
            assert wrong.is_closed()


def test_passwords_are_compared_in_constant_time_also_of_users_that_do_not_exist(
    behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []
    compare = plain_module.hmac.compare_digest

    def noted(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(plain_module.hmac, "compare_digest", noted)
    for user, password in ((USER, "x"), ("nobody", "x"), (USER, PASSWORD), ("nobody", "x" * 1000)):
        with Talk(behind.at["SASL_PLAINTEXT"]) as talk:
            talk.plain(user, password)
    assert compared == [(32, 32)] * 4


# Ends


def answers_of(data: bytes) -> list[int]:
    """The base offsets of these produce answers."""
    offsets = []
    while data:
        (size,) = struct.unpack_from(">i", data)
        _, answer = parse_response(APIS[_KEYS["Produce"]].key, 12, data[4 : 4 + size])
        offsets.append(answer.responses[0].partition_responses[0].base_offset)
        data = data[4 + size :]
    return offsets


@pytest.mark.parametrize("end", ["TLS's own end", "the end of TCP"])
@pytest.mark.parametrize("kind", ["small", "large"])
def test_a_client_that_ends_its_half_gets_every_answer(behind: Behind, end: str, kind: str) -> None:
    topic = f"half-{kind}-{len(end)}"
    with TlsRaw(behind.at["SSL"], trusting(behind.locks)) as raw:
        raw.create(topic)
    count, value = (300, b"x") if kind == "small" else (6, os.urandom(900_000))
    request = framed(produce_request(topic, batch(value)), 12)
    with BioPeer(behind.at["SSL"], trusting(behind.locks)).shake_hands() as peer:
        peer.socket.sendall(peer.sealed(request * count))
        if end == "TLS's own end":
            peer.say_the_end()
        else:
            peer.socket.shutdown(socket.SHUT_WR)
        assert answers_of(peer.read_all()) == list(range(count))
    until(behind.is_at_rest, what="everything to be given back")


def test_a_large_answer_is_sent_whole_although_the_client_has_ended_its_half(behind: Behind) -> None:
    """More than the sockets hold: most of it is not even encrypted when the end arrives."""
    with TlsRaw(behind.at["SSL"], trusting(behind.locks)) as raw:
        raw.create("whole")
        for _ in range(8):
            assert raw.produce("whole", batch(os.urandom(1_000_000))).error_code == 0
    asked = framed(fetch_request({("whole", 0): 0}, partition_max_bytes=9_000_000, max_wait_ms=0), 12)
    server = behind.broker.server
    for end in ("TLS", "TCP"):
        with BioPeer(behind.at["SSL"], trusting(behind.locks)).shake_hands() as peer:
            peer.socket.sendall(peer.sealed(asked))
            until(lambda: on_loop(behind.broker, lambda: server.connections.not_read) == 1, what="a full socket")
            if end == "TLS":
                peer.say_the_end()
            else:
                peer.socket.shutdown(socket.SHUT_WR)
            data = peer.read_all()
            assert struct.unpack_from(">i", data)[0] == len(data) - 4 > 8_000_000
        until(behind.is_at_rest, what="everything to be given back")


@pytest.fixture
def patient(locks: Locks) -> Iterator[Behind]:
    """A deadline that is left running would be found: it is far away."""
    with Broker(settings=settings_of(locks, semel_authentication_timeout_ms=3_600_000)) as broker:
        yield Behind(locks, broker)


def test_no_end_of_a_connection_leaves_anything_behind(patient: Behind) -> None:
    """Descriptors, timers (which would hold the connection) and memory, after each way to go."""
    behind = patient
    context = trusting(behind.locks)
    with TlsRaw(behind.at["SSL"], context) as raw:
        raw.create("large")
        for _ in range(3):
            assert raw.produce("large", batch(os.urandom(1_000_000))).error_code == 0
    asked = framed(fetch_request({("large", 0): 0}, partition_max_bytes=8_000_000, max_wait_ms=0), 12)

    def go(way: int) -> None:
        with dial(behind.at[("SSL", "SASL_SSL")[way % 2]]) as peer:
            if way % 6 == 0:
                return
            if way % 6 == 1:
                peer.sendall(client_hello())
                return
            if way % 6 == 2:
                peer.sendall(b"nonsense")
                return
        with BioPeer(behind.at[("SSL", "SASL_SSL")[way % 2]], context).shake_hands() as tls:
            tls.socket.sendall(tls.sealed(asked)[: None if way % 4 else -5])
            if way % 6 == 3:
                tls.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif way % 6 == 4:
                tls.say_the_end()

    go(5)
    until(behind.is_at_rest, what="a quiet broker")
    descriptors = len(os.listdir("/proc/self/fd"))
    for way in range(120):
        go(way)
    until(behind.is_at_rest, what="everything to be given back")

    def left() -> int:
        gc.collect()
        return sum(isinstance(one, TlsConnection) for one in gc.get_objects())

    until(lambda: on_loop(behind.broker, left) == 0, what="no connection to be held by a timer")
    # A client that an earlier test left behind may try to connect just now.
    until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, what="the descriptors to be closed")


def test_a_stopping_broker_ends_its_tls_connections_properly(locks: Locks) -> None:
    with Broker(settings=settings_of(locks)) as broker:
        address = Behind(locks, broker).at["SSL"]
        peer = BioPeer(address, trusting(locks)).shake_hands()
        until(lambda: len(broker.server.connections) == 1, what="the connection")
    with peer:
        assert peer.read_all() == b""
        assert peer.was_told_the_end
