"""Other people's clients at our broker: each of them by each mechanism, over TLS and without, and kept out alike.

One broker process with five listeners serves all. Each client makes a topic, aborts a transaction, commits another and
reads as a member of a group.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AiokafkaNewTopic
from aiokafka.helpers import create_ssl_context
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import NewTopic as KafkaPythonNewTopic

import semel
from semel.client.admin.admin import AsyncAdmin
from semel.client.consumer.consumer import AsyncConsumer
from semel.client.producer.producer import AsyncProducer
from semel.errors import AuthenticationFailed, TlsFailed
from tests.security.conftest import LISTENERS, PASSWORD, PROTOCOLS, USER, Locks, make_scram_users
from tests.support import java_tools
from tests.support.processes import BrokerProcess, free_port
from tests.support.requirements import CHECKOUT, require_go, require_kafka
from tests.support.waiting import until

JAVA = Path(__file__).parent / "java" / "Through.java"
GO = Path(__file__).parent / "go-client"
#: Building Go's own library for the first time takes its time.
BUILD_TIMEOUT_S = 600
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
#: The names of the ways in: the listener, and the mechanism where there is one.
WAYS: dict[str, tuple[str, str | None]] = {
    "SSL": ("SSL", None),
    "MUTUAL": ("MUTUAL", None),
    **{f"{listener}-{one}": (listener, one) for listener in ("SASL_PLAINTEXT", "SASL_SSL") for one in MECHANISMS},
}
#: The ways that lead nowhere, and what to get wrong.
WRONG = {
    f"wrong-{name}": way for name, way in WAYS.items() if way[1] is not None
}
NUMBERS = [b"%d" % number for number in range(10)]


@pytest.fixture(scope="module")
def locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locks]:
    folder = tmp_path_factory.mktemp("interop")
    locks, plain = Locks(folder), free_port()
    users = folder / "users"
    users.write_text(f"{USER}:{PASSWORD}\n")
    users.chmod(0o600)
    ports = {"INSIDE": plain, **locks.ports}
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "advertised.listeners": ",".join(f"{name}://localhost:{port}" for name, port in locks.ports.items()),
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,"
        + ",".join(f"{name}:{PROTOCOLS[name]}" for name in LISTENERS),
        "ssl.keystore.location": locks.broker_file,
        "ssl.truststore.location": locks.authority_file,
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/U",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "semel.sasl.plain.users.file": users,
        # Whoever can do it has to authenticate again on the way.
        "listener.name.sasl_ssl.connections.max.reauth.ms": 20_000,
        # Rules hold only if the principals are right.
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER};User:CLIENT",
        "group.initial.rebalance.delay.ms": 0,
    }
    with BrokerProcess(folder / "data", settings=settings, port=plain) as broker:
        locks.plaintext = broker.bootstrap_servers
        asyncio.run(make_scram_users(locks.plaintext))
        yield locks


def new_topic() -> str:
    return f"interop-{uuid.uuid4().hex[:8]}"


# librdkafka


def librdkafka(locks: Locks, listener: str, mechanism: str | None, **more: object) -> dict[str, Any]:
    found: dict[str, Any] = {
        "bootstrap.servers": locks.address(listener), "security.protocol": PROTOCOLS[listener], "log_level": 0,
    }
    if "SSL" in PROTOCOLS[listener]:
        found["ssl.ca.location"] = str(locks.authority_file)
    if listener == "MUTUAL":
        found |= {"ssl.certificate.location": str(locks.client_file), "ssl.key.location": str(locks.client_file)}
    if mechanism is not None:
        found |= {"sasl.mechanisms": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
    return found | more


def through_confluent(locks: Locks, listener: str, mechanism: str | None) -> list[bytes]:
    settings, topic = librdkafka(locks, listener, mechanism), new_topic()
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    producer = confluent_kafka.Producer({**settings, "transactional.id": topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"aborted")
    producer.flush(20)
    producer.abort_transaction(20)
    producer.begin_transaction()
    for number in NUMBERS:
        producer.produce(topic, number)
    producer.commit_transaction(20)
    consumer = confluent_kafka.Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        return read(lambda: [one.value() for one in consumer.consume(20, 0.2) if one.error() is None])
    finally:
        consumer.close()


def kept_out_confluent(locks: Locks, listener: str, mechanism: str) -> str:
    said: list[str] = []
    settings = librdkafka(locks, listener, mechanism, **{"sasl.password": "wrong"})
    producer = confluent_kafka.Producer({**settings, "error_cb": lambda error: said.append(f"{error.name()} {error}")})
    until(lambda: producer.poll(0.1) or any("_AUTHENTICATION" in one for one in said), what=f"a refusal in {said}")
    return next(one for one in said if "_AUTHENTICATION" in one)


# kafka-python


def kafka_python(locks: Locks, listener: str, mechanism: str | None, **more: object) -> dict[str, Any]:
    found: dict[str, Any] = {
        "bootstrap_servers": locks.address(listener), "security_protocol": PROTOCOLS[listener],
    }
    if "SSL" in PROTOCOLS[listener]:
        found["ssl_cafile"] = str(locks.authority_file)
    if listener == "MUTUAL":
        found["ssl_certfile"] = found["ssl_keyfile"] = str(locks.client_file)
    if mechanism is not None:
        found |= {"sasl_mechanism": mechanism, "sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    return found | more


def through_kafka_python(locks: Locks, listener: str, mechanism: str | None) -> list[bytes]:
    settings, topic = kafka_python(locks, listener, mechanism), new_topic()
    admin = kafka.KafkaAdminClient(**settings)
    admin.create_topics([KafkaPythonNewTopic(topic, 1, 1)])
    admin.close()
    producer = kafka.KafkaProducer(**settings, transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"aborted").get(20)
    producer.abort_transaction()
    producer.begin_transaction()
    for number in NUMBERS:
        producer.send(topic, number)
    producer.commit_transaction()
    producer.close()
    consumer = kafka.KafkaConsumer(
        **settings, group_id=topic, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    try:
        consumer.subscribe([topic])
        until(lambda: consumer.partitions_for_topic(topic), what="the topic's partitions")
        return read(lambda: [one.value for part in consumer.poll(200).values() for one in part])
    finally:
        consumer.close()


def kept_out_kafka_python(locks: Locks, listener: str, mechanism: str) -> str:
    with pytest.raises(kafka.errors.KafkaError) as refused:
        settings = kafka_python(locks, listener, mechanism, sasl_plain_password="wrong", bootstrap_timeout_ms=2000)
        kafka.KafkaAdminClient(**settings).list_topics()
    return repr(refused.value)


# aiokafka


def through_aiokafka(locks: Locks, listener: str, mechanism: str | None) -> list[bytes]:
    return asyncio.run(through_aiokafka_async(locks, listener, mechanism))


def aiokafka_settings(locks: Locks, listener: str, mechanism: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "bootstrap_servers": locks.address(listener), "security_protocol": PROTOCOLS[listener],
    }
    if "SSL" in PROTOCOLS[listener]:
        shown = str(locks.client_file) if listener == "MUTUAL" else None
        found["ssl_context"] = create_ssl_context(cafile=str(locks.authority_file), certfile=shown, keyfile=shown)
    if mechanism is not None:
        found |= {"sasl_mechanism": mechanism, "sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    return found


async def through_aiokafka_async(locks: Locks, listener: str, mechanism: str | None) -> list[bytes]:
    settings, topic = aiokafka_settings(locks, listener, mechanism), new_topic()
    admin = AIOKafkaAdminClient(**settings)
    await admin.start()
    await admin.create_topics([AiokafkaNewTopic(topic, 1, 1)])
    await admin.close()
    producer = aiokafka.AIOKafkaProducer(**settings, transactional_id=topic)
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"aborted")
    await producer.abort_transaction()
    async with producer.transaction():
        for number in NUMBERS:
            await producer.send(topic, number)
    await producer.stop()
    consumer = aiokafka.AIOKafkaConsumer(
        topic, **settings, group_id=topic, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    found: list[bytes] = []
    try:
        async with asyncio.timeout(30):
            while len(found) < 10:
                got = await consumer.getmany(timeout_ms=200)
                found += [one.value for part in got.values() for one in part]
    finally:
        await consumer.stop()
    return found


def kept_out_aiokafka(locks: Locks, listener: str, mechanism: str) -> str:
    async def try_it() -> None:
        settings = aiokafka_settings(locks, listener, mechanism) | {"sasl_plain_password": "wrong"}
        producer = aiokafka.AIOKafkaProducer(**settings)
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(aiokafka.errors.KafkaError) as refused:
        asyncio.run(try_it())
    return repr(refused.value)


# Our own


def through_blocking(locks: Locks, listener: str, mechanism: str | None) -> list[bytes]:
    settings, topic = locks.settings(listener, mechanism), new_topic()
    with semel.Admin(settings) as admin:
        admin.create_topics([semel.NewTopic(topic, 1)])
    with semel.Producer({**settings, "transactional.id": topic}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, value=b"aborted").result(20)
        producer.abort_transaction()
        with producer.transaction():
            for number in NUMBERS:
                producer.send(topic, value=number)
    with semel.Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        found = read(lambda: [one.value for one in consumer.poll(200) if one.value is not None])
        consumer.commit()
    return found


def through_asyncio(locks: Locks, listener: str, mechanism: str | None) -> list[bytes]:
    async def go() -> list[bytes]:
        settings, topic = locks.settings(listener, mechanism), new_topic()
        async with AsyncAdmin(settings) as admin:
            await admin.create_topics([semel.NewTopic(topic, 1)])
        async with AsyncProducer({**settings, "transactional.id": topic}) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                for number in NUMBERS:
                    await producer.send(topic, value=number)
        found: list[bytes] = []
        async with AsyncConsumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
            await consumer.subscribe([topic])
            async with asyncio.timeout(30):
                while len(found) < 10:
                    found += [one.value for one in await consumer.poll(200) if one.value is not None]
        return found

    return asyncio.run(go())


def kept_out_ours(locks: Locks, listener: str, mechanism: str) -> str:
    with pytest.raises(AuthenticationFailed) as refused, semel.Admin(
        locks.settings(listener, mechanism, sasl_password="wrong")
    ) as admin:
        admin.list_topics()
    return str(refused.value)


def read(poll: Callable[[], list[bytes]]) -> list[bytes]:
    found: list[bytes] = []
    until(lambda: found.extend(poll()) or len(found) >= 10, what=f"ten records, with {found}")
    return found


THROUGH = {
    "confluent-kafka": through_confluent,
    "kafka-python": through_kafka_python,
    "aiokafka": through_aiokafka,
    "semel": through_blocking,
    "semel, asyncio": through_asyncio,
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("named", list(THROUGH))
def test_a_client_of_python_comes_through_every_lock(locks: Locks, named: str, way: str) -> None:
    assert THROUGH[named](locks, *WAYS[way]) == NUMBERS


#: Kafka's code for it is 58; how each client spells that.
KEPT_OUT = {
    "confluent-kafka": (kept_out_confluent, "_AUTHENTICATION"),
    # It drops an answer that comes with the end of the connection, at Apache Kafka too.
    "kafka-python": (kept_out_kafka_python, "KafkaTimeoutError"),
    "aiokafka": (kept_out_aiokafka, "[Error 58] SaslAuthenticationFailed"),
    "semel": (kept_out_ours, "SASL_AUTHENTICATION_FAILED"),
}


@pytest.mark.parametrize("named", list(KEPT_OUT))
@pytest.mark.parametrize("way", ["SASL_PLAINTEXT-PLAIN", "SASL_SSL-SCRAM-SHA-512"])
def test_a_wrong_password_keeps_a_client_of_python_out(
    locks: Locks, named: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    keep_out, spelling = KEPT_OUT[named]
    listener, mechanism = WAYS[way]
    assert mechanism is not None
    # Two of them only log what they were told, and go on to try.
    said = keep_out(locks, listener, mechanism) + caplog.text
    assert spelling in said, said


def test_without_a_certificate_nobody_comes_in_where_one_is_required(locks: Locks) -> None:
    settings = locks.settings("MUTUAL")
    del settings["ssl.keystore.location"], settings["ssl.keystore.type"]
    with pytest.raises(TlsFailed), semel.Admin(settings) as admin:
        admin.list_topics()


# Java


def properties(locks: Locks, listener: str, mechanism: str | None, password: str = PASSWORD) -> str:
    """A client.properties, as Kafka's own tools read it."""
    settings = {name: str(value) for name, value in locks.settings(listener, mechanism).items()}
    if mechanism is not None:
        del settings["sasl.username"], settings["sasl.password"]
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        quoted = password.replace('"', '\\"')
        settings["sasl.jaas.config"] = (
            f'org.apache.kafka.common.security.{module} required username="{USER}" password="{quoted}";'
        )
    return "".join(f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in settings.items())


@pytest.fixture(scope="module")
def files(locks: Locks) -> dict[str, Path]:
    found = {}
    for name, (listener, mechanism) in (WAYS | WRONG).items():
        found[name] = locks.folder / f"{name}.properties"
        password = "wrong" if name in WRONG else PASSWORD
        found[name].write_text(properties(locks, listener, mechanism, password))
    return found


@pytest.mark.java
def test_the_java_client_comes_through_every_lock_and_is_kept_out_by_a_wrong_password(
    locks: Locks, files: dict[str, Path]
) -> None:
    require_kafka()
    said = java_tools.run(str(JAVA), *files.values(), timeout_s=200).stdout
    read = dict(line.split("=", 1) for line in said.splitlines())
    assert {name: read[name] for name in WAYS} == dict.fromkeys(WAYS, ",".join(map(str, range(10))))
    assert {name: read[name] for name in WRONG} == dict.fromkeys(WRONG, "!SaslAuthenticationException")


@pytest.mark.java
def test_kafkas_own_tools_come_through(locks: Locks, files: dict[str, Path]) -> None:
    require_kafka()
    topic, scram, tls = new_topic(), "SASL_SSL-SCRAM-SHA-512", "MUTUAL"

    def at(way: str) -> tuple[str, str]:
        return "--bootstrap-server", locks.address(WAYS[way][0])

    created = java_tools.run(
        "topics", *at(scram), "--command-config", files[scram], "--create", "--topic", topic, "--partitions", 2
    )
    assert f"Created topic {topic}" in created.stdout
    java_tools.run(
        "console-producer", *at(tls), "--command-config", files[tls], "--topic", topic, stdin="one\ntwo\nthree\n"
    )
    plain = "SASL_PLAINTEXT-PLAIN"
    read = java_tools.run(
        "console-consumer", *at(plain), "--command-config", files[plain], "--topic", topic, "--from-beginning",
        "--max-messages", 3, "--timeout-ms", 30_000,
    )
    assert sorted(read.stdout.split()) == ["one", "three", "two"]
    measured = java_tools.run(
        "producer-performance", "--command-config", files[scram], "--topic", topic, "--num-records", 20_000,
        "--record-size", 1000, "--throughput", -1, "--transactional-id", topic, "--transaction-duration-ms", 200,
        "--bootstrap-server", locks.address("SASL_SSL"), check=False,
    )
    assert "20000 records sent" in measured.stdout, str(measured)


# Go


@pytest.fixture(scope="module")
def go_clients() -> Path:
    """The folder of the two clients in Go."""
    require_go()
    folder = CHECKOUT / ".cache" / "go-client"
    folder.mkdir(parents=True, exist_ok=True)
    built = subprocess.run(
        ["go", "build", "-o", str(folder), "./franz", "./sarama"], cwd=GO, capture_output=True, text=True,
        timeout=BUILD_TIMEOUT_S, check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


#: How each client in Go spells Kafka's code 58.
GO_CLIENTS = {"franz": "SASL_AUTHENTICATION_FAILED", "sarama": "SASL Authentication failed"}


@pytest.mark.timeout(BUILD_TIMEOUT_S + 120)
@pytest.mark.parametrize("named", list(GO_CLIENTS))
def test_a_go_client_comes_through_every_lock_and_is_kept_out_by_a_wrong_password(
    locks: Locks, go_clients: Path, named: str
) -> None:
    ways = []
    for name, (listener, mechanism) in (WAYS | WRONG).items():
        way = {"Name": name, "Servers": locks.address(listener)}
        if "SSL" in PROTOCOLS[listener]:
            way["Authority"] = str(locks.authority_file)
        if listener == "MUTUAL":
            way["Certificate"] = str(locks.client_file)
        if mechanism is not None:
            password = "wrong" if name in WRONG else PASSWORD
            way |= {"Mechanism": mechanism, "User": USER, "Password": password}
        ways.append(way)
    done = subprocess.run(
        [str(go_clients / named)], input=json.dumps(ways), capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    told = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    for name in WAYS:
        assert (told[name]["error"], told[name]["read"]) == ("", [str(number) for number in range(10)]), told[name]
    for name in WRONG:
        assert GO_CLIENTS[named] in told[name]["error"], told[name]
