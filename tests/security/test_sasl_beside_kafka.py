"""The same requests to Apache Kafka's SASL listener and to ours: codes, texts and closings are the same."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from semel.machines.security.scram import ScramClient
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.security import SaslAuthenticateRequest
from tests.security.conftest import PASSWORD, USER, Locks
from tests.security.sasl_talk import CLOSED, VERSIONS, Talk, a_proof, nonce, plain

pytestmark = pytest.mark.java

#: What a client does, and what it notes. Kafka has one mechanism more, so names of mechanisms are compared to these.
OURS = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
Script = Callable[[Talk], Any]


def chosen(answer: Any) -> Any:
    return answer if answer == CLOSED else (answer[0], sorted(OURS & set(answer[1])))


def code_of(answer: Any) -> Any:
    return answer if answer == CLOSED else answer.error_code


def frame(*parts: bytes) -> bytes:
    data = b"".join(parts)
    return struct.pack(">i", len(data)) + data


def send(talk: Talk, data: bytes) -> Any:
    talk.socket.sendall(data)
    return talk.is_closed()


def is_served(talk: Talk) -> Any:
    answer = talk.tell(MetadataRequest(topics=[]))
    return answer if answer == CLOSED else "served"


def scram_first(talk: Talk, mechanism: str, first: bytes) -> Any:
    return [chosen(talk.handshake(mechanism)), talk.told(first)]


def scram_last(talk: Talk, change: Callable[[bytes, str], bytes], mechanism: str = "SCRAM-SHA-256") -> Any:
    """The right exchange but for its last message."""
    talk.handshake(mechanism)
    client = ScramClient(mechanism, USER, PASSWORD, nonce())
    answer = talk.authenticate(client.first())
    proof = client.prove(bytes(answer.auth_bytes))
    return talk.told(change(proof, bytes(answer.auth_bytes).decode()))


def plain_by(talk: Talk, version: int) -> Any:
    return [code_of(talk.plain(USER, PASSWORD, version)), is_served(talk)]


def plain_refused(talk: Talk, message: bytes) -> Any:
    return [chosen(talk.handshake("PLAIN")), talk.told(message), talk.is_closed()]


def scram_right(talk: Talk, mechanism: str) -> Any:
    return [code_of(talk.scram(mechanism, USER, PASSWORD)), is_served(talk)]


def scram_wrong(talk: Talk, mechanism: str, user: str, *, is_token: bool = False) -> Any:
    answer = talk.scram(mechanism, user, PASSWORD if is_token else "wrong", is_token=is_token)
    return [answer.error_code, answer.error_message, talk.is_closed()]


def again(talk: Talk, *steps: Callable[[Talk], Any]) -> list[Any]:
    """As bob, who is authenticated by PLAIN, and has to be again within a minute."""
    return [talk.plain("bob", "b0b").error_code, is_served(talk), *(step(talk) for step in steps)]


SCRIPTS: dict[str, Script] = {
    # The handshake
    "versions, handshake": lambda talk: [
        code_of(talk.tell(VERSIONS)), chosen(talk.handshake("PLAIN")), code_of(talk.authenticate(plain("bob", "b0b"))),
    ],
    "versions of each version": lambda talk: [code_of(talk.tell(VERSIONS, 0)), chosen(talk.handshake("PLAIN"))],
    "versions twice": lambda talk: [code_of(talk.tell(VERSIONS)), code_of(talk.tell(VERSIONS))],
    "versions with a wrong name, then right": lambda talk: [
        code_of(talk.tell(type(VERSIONS)(client_software_name="-", client_software_version="1"))),
        code_of(talk.tell(VERSIONS)), chosen(talk.handshake("PLAIN")),
    ],
    "versions of a later version": lambda talk: [
        talk.socket.sendall(frame(struct.pack(">hhih", 18, 99, 7, -1), b"\0")),
        talk.receive_frame()[:6], code_of(talk.tell(VERSIONS)), chosen(talk.handshake("PLAIN")),
    ],
    "unknown mechanism": lambda talk: [chosen(talk.handshake("CRAM-MD5")), talk.is_closed()],
    "unknown mechanism, v0": lambda talk: [chosen(talk.handshake("CRAM-MD5", 0)), talk.is_closed()],
    "mechanism in small letters": lambda talk: [chosen(talk.handshake("plain")), talk.is_closed()],
    "no mechanism": lambda talk: [chosen(talk.handshake("")), talk.is_closed()],
    "handshake of a later version": lambda talk: send(
        talk, frame(struct.pack(">hhih", 17, 9, 7, -1), b"\0\5PLAIN")
    ),
    "two handshakes": lambda talk: [chosen(talk.handshake("PLAIN")), talk.handshake("PLAIN"), talk.is_closed()],
    "versions after the handshake": lambda talk: [
        chosen(talk.handshake("PLAIN")), code_of(talk.tell(VERSIONS)), talk.is_closed(),
    ],
    # Out of order
    "metadata first": lambda talk: is_served(talk),
    "metadata after versions": lambda talk: [code_of(talk.tell(VERSIONS)), is_served(talk)],
    "metadata after the handshake": lambda talk: [
        chosen(talk.handshake("PLAIN")), code_of(talk.tell(MetadataRequest(topics=[]))), talk.is_closed(),
    ],
    "authenticate first": lambda talk: talk.told(plain("bob", "b0b")),
    "authenticate after versions": lambda talk: [code_of(talk.tell(VERSIONS)), talk.told(plain("bob", "b0b"))],
    "authenticate of a later version": lambda talk: [
        chosen(talk.handshake("PLAIN")), send(talk, frame(struct.pack(">hhih", 36, 9, 7, -1), b"\0\1\0")),
    ],
    "authenticate twice": lambda talk: again(talk, lambda t: code_of(t.authenticate(plain("bob", "b0b"))), is_served),
    # What is no request
    "http": lambda talk: send(talk, b"GET / HTTP/1.1\r\nHost: there\r\n\r\n"),
    "garbage in a frame": lambda talk: send(talk, frame(b"\x60\x28garbage of a few bytes")),
    "an empty frame": lambda talk: send(talk, frame()),
    "a negative length": lambda talk: send(talk, b"\xff\xff\xff\xff"),
    "too large": lambda talk: send(talk, struct.pack(">i", 524289)),
    "too large after the handshake": lambda talk: [
        chosen(talk.handshake("PLAIN")), send(talk, struct.pack(">i", 524289)),
    ],
    "as large as may be": lambda talk: [
        chosen(talk.handshake("PLAIN")), talk.told(plain("bob", "b" * (524288 - 20 - 3 - 8)), 1),
    ],
    "garbage after the handshake": lambda talk: [chosen(talk.handshake("PLAIN")), send(talk, frame(b"\xff" * 50))],
    # PLAIN
    **{f"plain, SaslAuthenticate v{version}": partial(plain_by, version=version) for version in (0, 1, 2)},
    **{
        f"plain, {name}": partial(plain_refused, message=message)
        for name, message in {
            "wrong password": plain(USER, "wrong"),
            "unknown user": plain("eve", "wrong"),
            "no user": plain("", "wrong"),
            "no password": plain(USER, ""),
            "other authorization id": plain(USER, PASSWORD, "bob"),
            "other authorization id and a wrong password": plain(USER, "wrong", "bob"),
            "two parts": b"alice\0secret",
            "four parts": plain("bob", "b0b") + b"\0more",
            "nothing": b"",
            "not UTF-8": b"\0bob\0\xff\xfe",
        }.items()
    },
    "plain, own authorization id": lambda talk: [
        chosen(talk.handshake("PLAIN")), talk.told(plain("bob", "b0b", "bob")), is_served(talk),
    ],
    "plain, raw": lambda talk: [
        chosen(talk.handshake("PLAIN", 0)), talk.raw_message(plain("bob", "b0b")), is_served(talk),
    ],
    "plain, raw and wrong": lambda talk: [chosen(talk.handshake("PLAIN", 0)), talk.raw_message(plain("bob", "no"))],
    "plain, raw and no message": lambda talk: [
        chosen(talk.handshake("PLAIN", 0)), code_of(talk.tell(SaslAuthenticateRequest(auth_bytes=plain("bob", "b0b")))),
    ],
    # SCRAM
    **{f"{name}, right": partial(scram_right, mechanism=name) for name in ("SCRAM-SHA-256", "SCRAM-SHA-512")},
    **{
        f"{name}, wrong password": partial(scram_wrong, mechanism=name, user=USER)
        for name in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    },
    "scram, unknown user": partial(scram_wrong, mechanism="SCRAM-SHA-256", user="eve"),
    "scram, the other mechanism's message": lambda talk: [
        chosen(talk.handshake("SCRAM-SHA-256")), talk.told(plain("bob", "b0b")), talk.is_closed(),
    ],
    "scram, other authorization id": lambda talk: scram_first(
        talk, "SCRAM-SHA-256", f"n,a=bob,n={USER},r={nonce()}".encode()
    ),
    "scram, channel binding": lambda talk: scram_first(
        talk, "SCRAM-SHA-256", f"p=tls-unique,,n={USER},r={nonce()}".encode()
    ),
    "scram, no nonce": lambda talk: scram_first(talk, "SCRAM-SHA-256", f"n,,n={USER},r=".encode()),
    "scram, no user": lambda talk: scram_first(talk, "SCRAM-SHA-256", f"n,,n=,r={nonce()}".encode()),
    "scram, token that does not exist": partial(scram_wrong, mechanism="SCRAM-SHA-256", user=USER, is_token=True),
    "scram, another nonce in the end (CVE-2024-56128)": lambda talk: scram_last(
        talk, lambda proof, _: proof.replace(b",r=", b",r=x", 1)
    ),
    "scram, no proof": lambda talk: scram_last(talk, lambda proof, _: proof.split(b",p=")[0]),
    "scram, a proof of nothing": lambda talk: scram_last(
        talk, lambda proof, _: proof.split(b",p=")[0] + b",p=" + a_proof("SCRAM-SHA-256").encode()
    ),
    "scram, a proof that is not base64": lambda talk: scram_last(
        talk, lambda proof, _: proof.split(b",p=")[0] + b",p=!!!!"
    ),
    "scram, its proof first": lambda talk: scram_first(
        talk, "SCRAM-SHA-256", f"c=biws,r={nonce()},p={a_proof('SCRAM-SHA-256')}".encode()
    ),
    # Again
    "again, where nobody has to": lambda talk: [
        code_of(talk.scram("SCRAM-SHA-256", USER, PASSWORD)), talk.handshake("SCRAM-SHA-256"),
        code_of(talk.authenticate(b"more")), is_served(talk),
    ],
    "again, the same": lambda talk: again(
        talk, lambda t: chosen(t.handshake("PLAIN")), lambda t: t.told(plain("bob", "b0b")), is_served
    ),
    "again, raw": lambda talk: again(
        talk, lambda t: chosen(t.handshake("PLAIN", 0)), lambda t: t.raw_message(plain("bob", "b0b")), is_served
    ),
    "again, too soon": lambda talk: again(
        talk, lambda t: chosen(t.handshake("PLAIN")), lambda t: t.told(plain("bob", "b0b")),
        lambda t: t.handshake("PLAIN"), is_served,
    ),
    "again, somebody else": lambda talk: again(
        talk, lambda t: chosen(t.handshake("PLAIN")), lambda t: t.told(plain(USER, PASSWORD)), Talk.is_closed
    ),
    "again, wrong password": lambda talk: again(
        talk, lambda t: chosen(t.handshake("PLAIN")), lambda t: t.told(plain("bob", "b")), Talk.is_closed
    ),
    "again, no form": lambda talk: again(
        talk, lambda t: chosen(t.handshake("PLAIN")), lambda t: t.told(b"nothing"), Talk.is_closed
    ),
    "again, another mechanism": lambda talk: again(
        talk, lambda t: chosen(t.handshake("SCRAM-SHA-256")), lambda t: t.told(plain("bob", "b0b"))
    ),
    "again, unknown mechanism": lambda talk: again(talk, lambda t: chosen(t.handshake("X")), Talk.is_closed),
    "again, and a request in between": lambda talk: again(
        talk, lambda t: chosen(t.handshake("PLAIN")), lambda t: code_of(t.tell(MetadataRequest(topics=[]))),
        Talk.is_closed,
    ),
    "again, and versions in between": lambda talk: again(
        talk, lambda t: chosen(t.handshake("PLAIN")), lambda t: code_of(t.tell(VERSIONS)), Talk.is_closed
    ),
}


def noted(locks: Locks, script: Script) -> Any:
    with Talk(locks.address("SASL_PLAINTEXT")) as talk:
        return script(talk)


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_client_is_told_is_what_kafka_tells_it(locked_kafka: Locks, locked_semel: Locks, name: str) -> None:
    ours, kafkas = noted(locked_semel, SCRIPTS[name]), noted(locked_kafka, SCRIPTS[name])
    assert ours == kafkas, f"Kafka: {kafkas}"
