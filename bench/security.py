"""What security costs: TLS beside Kafka's TLS, an authentication beside Kafka's, and access rules beside none.

TLS and SCRAM are measured on one server with a listener for each, by the same clients for both. Access rules are
measured on Semel alone: three brokers (no authorizer, 10 rules, 10,000 rules) run at the same time and are asked in
turn, a slice of a second each, so that a slow minute of the machine falls on all three.

`SEMEL_BENCH_PART=0.02` makes every measurement that much smaller, to try the bench itself.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Producer

from bench.clients import consume_all, create_topic, producer_performance
from bench.harness import Family, Row, Server
from semel.machines.security.scram import ScramClient, salted_password
from semel.security.development import DevelopmentAuthority
from semel.wire.apis import ApiKey
from semel.wire.frames import request_frame
from semel.wire.messages.produce import ProduceRequest
from semel.wire.messages.security import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from tests.broker.raw import Raw, batch
from tests.support.processes import BrokerProcess, free_port

TLS_PRODUCE = "produce 500,000 x 1 KB over TLS, acks=all"
TLS_PRODUCE_CPU = "broker CPU for it"
TLS_FETCH = "consume it back over TLS, librdkafka"
TLS_FETCH_CPU = "broker CPU for that"
CONNECT = "connect and authenticate by SCRAM-SHA-256, median"
CONNECT_CPU = "broker CPU for 1,000 of them"
RULES_CPU = "broker CPU for a produce request, 10,000 access rules to 10"
RULES_RATE = "produced 1 KB records/s, 10,000 access rules to 10"
GUARD_CPU = "broker CPU for a produce request, 10 access rules to no authorizer"

_PART = float(os.environ.get("SEMEL_BENCH_PART", "1"))
RECORDS = int(500_000 * _PART)
CONNECTS = max(int(1_000 * _PART), 50)
#: Each slice of the three brokers with access rules, and how many slices each gets.
REQUESTS, SLICE_RECORDS, SLICES = int(5_000 * _PART), int(50_000 * _PART), 8
#: How many produce requests are on their way at once.
WINDOW = 20
USER, PASSWORD, ITERATIONS = "bench", "secret of the bench", 4096
TOPIC = "measured"


def measure(server: Server) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="bench-security-"))
    try:
        places = secure(server, folder)
        server.start()
        figures = measure_tls(server, places["TLS"], folder) | measure_connects(server, places["SASL"])
        server.process.terminate()
        return figures | measure_rules(folder) if server.kind == "semel" else figures
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def secure(server: Server, folder: Path) -> dict[str, str]:
    """Give a server that is not started yet a listener with TLS and one with SASL; where they are."""
    authority = DevelopmentAuthority()
    (folder / "authority.pem").write_text(authority.certificate_pem)
    broker_file, _ = authority.issue("broker", hosts=["127.0.0.1"]).write(folder, "broker")
    places = {"PLAINTEXT": server.bootstrap_servers} | {
        name: f"127.0.0.1:{free_port()}" for name in ("TLS", "SASL")
    }
    listeners = ",".join(f"{name}://{place}" for name, place in places.items())
    protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,SASL:SASL_PLAINTEXT"
    settings = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": protocols,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(broker_file),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    if server.kafka is not None:
        own = f",CONTROLLER://127.0.0.1:{server.kafka.controller_port}"
        server.kafka.set_properties({**settings, "listeners": listeners + own})
    elif server.semel is not None:
        server.semel.settings |= settings
    return places


# TLS


def measure_tls(server: Server, place: str, folder: Path) -> dict[str, float]:
    create_topic(server, TOPIC)
    create_topic(server, "warm")
    java = (
        "security.protocol=SSL",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={folder / 'authority.pem'}",
    )
    librdkafka = {"security.protocol": "SSL", "ssl.ca.location": str(folder / "authority.pem")}
    producer_performance(server, "warm", 20_000, 1_000, properties=java, at=place)
    figures = {}
    before = server.process.cpu_s()
    figures[TLS_PRODUCE] = producer_performance(server, TOPIC, RECORDS, 1_000, properties=java, at=place)
    figures[TLS_PRODUCE_CPU] = server.process.cpu_s() - before
    before = server.process.cpu_s()
    figures[TLS_FETCH] = consume_all(server, TOPIC, RECORDS, {**librdkafka, "bootstrap.servers": place})
    figures[TLS_FETCH_CPU] = server.process.cpu_s() - before
    return figures


# Authentication


def measure_connects(server: Server, place: str) -> dict[str, float]:
    """Milliseconds from `connect` to the end of the exchange, one after the other."""
    salt = secrets.token_bytes(16)
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=USER,
        mechanism=1,
        iterations=ITERATIONS,
        salt=salt,
        salted_password=salted_password("SCRAM-SHA-256", PASSWORD, salt, ITERATIONS),
    )
    with Raw(server.bootstrap_servers) as admin:
        answer = admin.ask(AlterUserScramCredentialsRequest(upsertions=[upsertion]))
    assert [row.error_code for row in answer.results] == [0], answer
    # Kafka needs a moment until the credential is known, and some hundred rounds until its code is compiled.
    deadline = time.monotonic() + 30
    while True:
        try:
            connect(place)
            break
        except (ConnectionError, AssertionError):
            assert time.monotonic() < deadline, "the user cannot authenticate"
    for _ in range(CONNECTS // 2):
        connect(place)
    before = server.process.cpu_s()
    samples = [connect(place) for _ in range(CONNECTS)]
    cpu = (server.process.cpu_s() - before) * 1_000 / CONNECTS
    return {CONNECT: statistics.median(samples), CONNECT_CPU: cpu}


def connect(place: str) -> float:
    began = time.perf_counter()
    with Raw(place) as raw:
        raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert raw.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1).error_code == 0
        client = ScramClient("SCRAM-SHA-256", USER, PASSWORD, secrets.token_urlsafe(18))
        first = raw.ask(SaslAuthenticateRequest(auth_bytes=client.first()))
        assert first.error_code == 0, first
        last = raw.ask(SaslAuthenticateRequest(auth_bytes=client.prove(bytes(first.auth_bytes))))
        assert last.error_code == 0, last
        client.check(bytes(last.auth_bytes))
        return (time.perf_counter() - began) * 1000


# Access rules


def measure_rules(folder: Path) -> dict[str, float]:
    with ExitStack() as stack:
        brokers = {count: stack.enter_context(broker_with_rules(folder, count)) for count in (None, 10, 10_000)}
        cpu_s = dict.fromkeys(brokers, 0.0)
        rates: dict[int | None, list[float]] = {count: [] for count in brokers}
        for number in range(SLICES + 1):
            turn = list(brokers.items())
            for count, broker in turn if number % 2 == 0 else reversed(turn):
                before = broker.running.cpu_s()
                ask_to_produce(broker.bootstrap_servers, REQUESTS)
                cpu = broker.running.cpu_s() - before
                rate = produced_per_second(broker.bootstrap_servers, SLICE_RECORDS)
                if number:  # the first slice warms up
                    cpu_s[count] += cpu
                    rates[count].append(rate)
    paired = [many / few for many, few in zip(rates[10_000], rates[10], strict=True)]
    return {
        RULES_CPU: cpu_s[10_000] / cpu_s[10],
        RULES_RATE: statistics.median(paired),
        GUARD_CPU: cpu_s[10] / cpu_s[None],
    }


@contextmanager
def broker_with_rules(folder: Path, count: int | None) -> Iterator[BrokerProcess]:
    """A broker with so many access rules; None for one without an authorizer."""
    settings = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    # No rule is about the cluster: whoever sets up the bench may do so.
    settings["allow.everyone.if.no.acl.found"] = "true"
    with BrokerProcess(folder / f"rules-{count}", settings={} if count is None else settings) as broker:
        with Raw(broker.bootstrap_servers) as admin:
            admin.create(TOPIC)
            rows = [] if count is None else rules(count)
            for start in range(0, len(rows), 1_000):
                answer = admin.ask(CreateAclsRequest(creations=rows[start : start + 1_000]))
                assert all(row.error_code == 0 for row in answer.results), answer
        yield broker


def rules(count: int) -> list[CreateAclsRequest.AclCreation]:
    """The rule that is needed, and others: for other users, for other topics, with prefixes of forty lengths."""
    literal, prefixed, topic, write, allow = 3, 4, 2, 4, 3
    rows = []
    for number in range(count):
        name, pattern, principal = TOPIC, literal, "User:ANONYMOUS"
        if number % 3 == 1:
            principal = f"User:other-{number}"
        elif number % 3 == 2:
            name, pattern = f"{'x' * (number % 40)}topic-{number}", prefixed if number % 2 else literal
        elif number:
            name = f"topic-{number}"
        rows.append(
            CreateAclsRequest.AclCreation(
                resource_type=topic, resource_name=name, resource_pattern_type=pattern, principal=principal, host="*",
                operation=write, permission_type=allow,
            )
        )
    return rows


def ask_to_produce(place: str, count: int) -> None:
    """So many produce requests of one record each, some of them on their way at once."""
    data = ProduceRequest.TopicProduceData(
        name=TOPIC, partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch(b"x" * 100))]
    )
    message = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
    frame = b"".join(request_frame(ApiKey.PRODUCE, 9, 1, "bench", message))
    with Raw(place) as raw:
        raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.socket.sendall(frame * WINDOW)
        first = raw.receive((ApiKey.PRODUCE, 9, 1))
        assert first.responses[0].partition_responses[0].error_code == 0, first
        with raw.socket.makefile("rb", 1 << 16) as answers:
            for number in range(1, count):
                if number <= count - WINDOW:
                    raw.socket.sendall(frame)
                answers.read(struct.unpack(">i", answers.read(4))[0])


def produced_per_second(place: str, records: int) -> float:
    failed: list[object] = []
    producer = Producer(
        {"bootstrap.servers": place, "acks": "all", "linger.ms": 5, "queue.buffering.max.messages": records + 1}
    )
    producer.list_topics(TOPIC, 10)
    value = b"x" * 1_000
    began = time.perf_counter()
    for _ in range(records):
        producer.produce(TOPIC, value, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(120) == 0 and not failed, failed[:3]
    return records / (time.perf_counter() - began)


FAMILIES = [
    Family(
        "security",
        (
            Row(TLS_PRODUCE, "records/s", 1.5, higher_is_better=True),
            Row(TLS_PRODUCE_CPU, "s", None, higher_is_better=False),
            Row(TLS_FETCH, "records/s", 1.5, higher_is_better=True),
            Row(TLS_FETCH_CPU, "s", None, higher_is_better=False),
            Row(CONNECT, "ms", 1.0, higher_is_better=False),
            Row(CONNECT_CPU, "s", None, higher_is_better=False),
            Row(RULES_CPU, "x", 1.03, higher_is_better=False, alone=True),
            Row(RULES_RATE, "x", 0.97, higher_is_better=True, alone=True),
            Row(GUARD_CPU, "x", None, higher_is_better=False, alone=True),
        ),
        measure,
        starts_itself=True,
    )
]
