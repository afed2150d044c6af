"""An embedded broker with TLS, users and access rules: any client gets in as told, and nobody else does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

import semel
from semel import AclBinding
from semel.broker.listening import Listening
from semel.config import ConfigError
from semel.errors import AuthenticationFailed, AuthorizationFailed, Disconnected, KafkaError, TlsFailed
from tests.support import java_tools
from tests.support.pages import blocks_of
from tests.support.requirements import CHECKOUT

PATIENCE_S = 30


def write(settings: dict[str, Any], topic: str = "payments") -> None:
    with semel.Producer(settings) as producer:
        producer.send(topic, b"12.50").result(PATIENCE_S)


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
def test_a_user_gets_in_by_each_mechanism(protocol: str, mechanism: str) -> None:
    with semel.Broker(security=semel.Security(["alice", "bob"], protocol)) as broker:
        write(broker.client_settings("alice", mechanism=mechanism))
        wrong = {**broker.client_settings("bob", mechanism=mechanism), "sasl.username": "alice"}
        with pytest.raises(AuthenticationFailed), semel.Admin(wrong) as admin:
            admin.list_topics()
        with pytest.raises(KafkaError), semel.Admin(
            {"bootstrap.servers": broker.bootstrap_servers, "default.api.timeout.ms": 1000}
        ) as admin:
            admin.list_topics()


def test_users_of_ssl_show_a_certificate_of_this_broker() -> None:
    rule = AclBinding("User:alice", "all", "topic", "payments")
    security = semel.Security(["alice", "bob"], "SSL", acls=[rule])
    with semel.Broker(security=security) as broker, semel.Broker(security=security) as other:
        write({**broker.client_settings("alice"), "enable.idempotence": False})
        with pytest.raises(AuthorizationFailed):
            write({**broker.client_settings("bob"), "enable.idempotence": False})
        stranger = other.client_settings("alice") | {"bootstrap.servers": broker.bootstrap_servers}
        with pytest.raises(TlsFailed), semel.Admin(stranger) as admin:
            admin.list_topics()
        nobody = {name: word for name, word in broker.client_settings("alice").items() if "location" not in name}
        ours = nobody | {"ssl.ca.location": broker.client_settings("alice")["ssl.ca.location"]}
        with pytest.raises((TlsFailed, Disconnected, KafkaError)), semel.Admin(
            {**ours, "default.api.timeout.ms": 1000}
        ) as admin:
            admin.list_topics()


def test_tls_without_users_only_encrypts() -> None:
    with semel.Broker(security=semel.Security(protocol="SSL")) as broker:
        write(broker.client_settings())
        with pytest.raises(ConfigError, match="no user 'alice': this broker has none"):
            broker.client_settings("alice")


@pytest.mark.parametrize(
    "security",
    [semel.Security(["alice"]), semel.Security(["alice"], "SASL_PLAINTEXT"), semel.Security(["alice"], "SSL"), None],
    ids=["SASL_SSL", "SASL_PLAINTEXT", "SSL", "PLAINTEXT"],
)
def test_every_client_gets_in_with_the_settings_in_its_form(security: semel.Security | None) -> None:
    with semel.Broker(security=security) as broker:
        librdkafka = confluent_kafka.Producer(broker.client_settings())
        librdkafka.produce("payments", b"1")
        assert librdkafka.flush(PATIENCE_S) == 0
        kafka_python = kafka.KafkaProducer(**broker.client_settings(form="kafka-python"))
        try:
            assert kafka_python.send("payments", b"2").get(PATIENCE_S).offset == 1
        finally:
            kafka_python.close(5)

        async def send() -> int:
            producer = aiokafka.AIOKafkaProducer(**broker.client_settings(form="aiokafka"))
            await producer.start()
            try:
                return (await producer.send_and_wait("payments", b"3")).offset
            finally:
                await producer.stop()

        assert asyncio.run(send()) == 2
        write(broker.client_settings(form="java"))


@pytest.mark.java
@pytest.mark.parametrize("protocol", ["SASL_SSL", "SSL"])
def test_a_java_client_gets_in_with_the_settings_in_its_form(
    protocol: str, tmp_path: Path, kafka_jars: None
) -> None:
    with semel.Broker(security=semel.Security(["alice"], protocol)) as broker:
        file = tmp_path / "client.properties"
        settings = broker.client_settings(form="java")
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        at = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", file)
        java_tools.run("topics", *at, "--create", "--topic", "payments")
        assert java_tools.run("topics", *at, "--list").stdout.split() == ["payments"]


def test_access_rules_hold_from_the_first_request_on() -> None:
    rules = [AclBinding("User:alice", "write", "topic", "pay", pattern_type="prefixed")]
    security = semel.Security({"alice": "a-1", "root": "r-1"}, acls=rules, super_users=["root"])
    with semel.Broker(security=security) as broker:
        with semel.Admin(broker.client_settings("root")) as admin:
            assert admin.describe_acls() == rules
        for topic in ("payments", "ledger"):
            write(broker.client_settings("root"), topic)
        write(broker.client_settings("alice"))
        with pytest.raises(AuthorizationFailed):
            write(broker.client_settings("alice"), "ledger")


def test_super_users_alone_turn_access_rules_on() -> None:
    with semel.Broker(security=semel.Security(["alice", "root"], super_users=["root"])) as broker:
        write(broker.client_settings("root"))
        with pytest.raises(AuthorizationFailed):
            write(broker.client_settings("alice"))


def test_the_same_data_may_get_other_passwords(tmp_path: Path) -> None:
    with semel.Broker(tmp_path, security=semel.Security({"alice": "old"})) as broker:
        write(broker.client_settings("alice"))
    with semel.Broker(tmp_path, security=semel.Security({"alice": "new"})) as broker:
        write(broker.client_settings("alice"))
        with pytest.raises(AuthenticationFailed), semel.Admin(
            {**broker.client_settings("alice"), "sasl.password": "old"}
        ) as admin:
            admin.list_topics()


def test_certificates_and_passwords_are_gone_with_the_broker_and_nobody_else_can_read_them() -> None:
    with semel.Broker(security=semel.Security({"alice": "wonderland"})) as broker:
        folder = Path(broker.client_settings("alice")["ssl.ca.location"]).parent
        assert folder.stat().st_mode & 0o077 == 0
        assert {path.name for path in folder.iterdir()} >= {"authority.pem", "broker.pem", "users"}
    assert not folder.exists()


def test_users_and_rules_are_stored_before_anybody_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, int]] = []
    let_in = Listening.start

    async def look(listening: Listening) -> None:
        broker = listening._broker
        assert broker.access is not None
        seen.append((("alice", 1) in broker.stores.scram, len(broker.access.rules)))
        await let_in(listening)

    monkeypatch.setattr(Listening, "start", look)
    with semel.Broker(security=semel.Security(["alice"], acls=[AclBinding("User:alice", "read", "topic", "t")])):
        assert seen == [(True, 1)]


def test_a_broker_that_cannot_start_leaves_no_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with semel.Broker() as other:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        broker = semel.Broker(listen=other.bootstrap_servers, security=semel.Security(["alice"]))
        assert list(tmp_path.iterdir())
        with pytest.raises(ConfigError, match="in use"):
            broker.start()
        assert list(tmp_path.iterdir()) == []
        broker.stop()


def test_no_password_is_in_a_repr() -> None:
    security = semel.Security({"alice": "wonderland"}, acls=[])
    assert "wonderland" not in repr(security)
    with semel.Broker(security=security) as broker:
        assert "wonderland" not in repr(broker) + repr(broker.server.settings)


USERS = {"alice": "wonderland"}


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"users": "alice"}, TypeError, "users is a list of names, not str"),
        ({"users": 5}, TypeError, "users is a list of names, not int"),
        ({"users": [b"alice"]}, TypeError, "each of users is str, not bytes"),
        ({"users": {"alice": 5}}, TypeError, "password of alice is str, not int"),
        ({"users": {"alice": ""}}, ConfigError, "password of alice is empty"),
        ({"users": {"alice": "a\nb"}}, ConfigError, "cannot be printed"),
        ({"users": {5: "a"}}, TypeError, "name of a user is str, not int"),
        ({"users": ["a:b"]}, ConfigError, "is no name here"),
        ({"users": [""]}, ConfigError, "is no name here"),
        ({}, ConfigError, "needs users"),
        ({"users": USERS, "protocol": "TLS"}, ConfigError, "must be one of SASL_SSL"),
        ({"users": USERS, "protocol": None}, TypeError, "protocol is one of"),
        ({"users": USERS, "protocol": "SSL"}, ConfigError, "certificates, no passwords"),
        ({"users": USERS, "acls": "all"}, TypeError, "acls is a list of AclBinding, not str"),
        ({"users": USERS, "acls": ["all"]}, TypeError, "each of acls is an AclBinding, not str"),
        ({"users": USERS, "acls": [AclBinding("alice", "read", "topic", "t")]}, ConfigError, "not a principal"),
        ({"users": USERS, "acls": [AclBinding("User:a", "write", "group", "g")]}, ConfigError, "no operation on"),
        ({"users": USERS, "acls": [AclBinding("User:a", "fly", "group", "g")]}, ConfigError, "operation is 'fly'"),
        ({"users": USERS, "super_users": ["root"]}, ConfigError, "'root' is none of users"),
        ({"users": USERS, "super_users": "alice"}, TypeError, "super_users is a list"),
    ],
)  # fmt: skip
def test_a_security_that_cannot_be_is_refused_with_words(
    arguments: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        semel.Security(**arguments)


@pytest.mark.parametrize(
    ("named", "kind", "said"),
    [
        ({"security": "SASL_SSL"}, TypeError, r"security is a semel.Security, such as .*, not str"),
        ({"security": semel.Security(USERS), "settings": {"listeners": "SSL://:0"}}, ConfigError, "listeners: it"),
        ({"security": semel.Security(USERS), "listen": "nonsense"}, ConfigError, "HOST:PORT"),
        ({"security": semel.Security(USERS), "settings": {"num.partition": 1}}, ConfigError, "did you mean"),
    ],
)  # fmt: skip
def test_a_broker_that_cannot_be_protected_so_is_refused_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: Any, kind: type[Exception], said: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(kind, match=said):
        semel.Broker(**named).start()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"pip install 'semel\[security\]'"):
        semel.Broker(security=semel.Security(USERS))
    assert list(tmp_path.iterdir()) == []
    with semel.Broker(security=semel.Security(USERS, "SASL_PLAINTEXT")) as broker:
        write(broker.client_settings())


def test_settings_for_whom_or_what_is_not_there_are_refused() -> None:
    with semel.Broker(security=semel.Security(["alice", "bob"], "SASL_PLAINTEXT")) as broker:
        for arguments, kind, said in (
            ((), ConfigError, "which user"),
            (("carol",), ConfigError, "no user 'carol': choose from alice, bob"),
            ((5,), TypeError, "user is str, not int"),
        ):
            with pytest.raises(kind, match=said):
                broker.client_settings(*arguments)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="form='go': must be one of librdkafka"):
            broker.client_settings("alice", form="go")
        with pytest.raises(ConfigError, match="mechanism='GSSAPI': must be one of"):
            broker.client_settings("alice", mechanism="GSSAPI")
    with semel.Broker() as open_broker:
        assert open_broker.client_settings() == {"bootstrap.servers": open_broker.bootstrap_servers}
        with pytest.raises(ConfigError, match="made without security"):
            open_broker.client_settings("alice")


def test_a_broker_without_security_loads_nothing_of_it_and_has_as_many_threads(tmp_path: Path) -> None:
    program = (
        "import sys, threading, semel\n"
        "with semel.Broker() as broker:\n"
        "    loaded = [name for name in sys.modules if 'embedded_sec' in name or 'cryptography' in name]\n"
        "    print(loaded, threading.active_count())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[] 2\n"


@pytest.mark.semel_broker(settings={"num.partitions": 3}, security=semel.Security(["alice"]))
def test_a_marker_gives_the_fixture_security_and_settings(semel_broker: semel.Broker) -> None:
    write(semel_broker.client_settings("alice"))
    with semel.Admin(semel_broker.client_settings("alice")) as admin:
        assert len(admin.describe_topics(["payments"])["payments"].partitions) == 3


@pytest.mark.semel_broker(security=semel.Security(["alice"]))
class TestOfAClass:
    @pytest.mark.semel(**{"num.partitions": 2})
    def test_a_marker_of_the_class_holds_too(self, semel_broker: semel.Broker) -> None:
        write(semel_broker.client_settings())
        with semel.Admin(semel_broker.client_settings()) as admin:
            assert len(admin.describe_topics(["payments"])["payments"].partitions) == 2

    @pytest.mark.semel_broker(security=None)
    def test_the_nearest_marker_decides(self, semel_broker: semel.Broker) -> None:
        assert list(semel_broker.client_settings()) == ["bootstrap.servers"]


MISTAKES = """
import pytest

@pytest.mark.semel_broker("SASL_SSL")
def test_positional(semel_broker): ...

@pytest.mark.semel_broker(users=["alice"])
def test_unknown(semel_broker): ...

@pytest.mark.semel_broker(settings="num.partitions=3")
def test_settings(semel_broker): ...

@pytest.mark.semel_broker(security="SASL_SSL")
def test_security(semel_broker): ...
"""


def test_a_mistake_in_a_marker_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "test_mistakes.py").write_text(MISTAKES)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "."]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert "4 errors" in done.stdout, done.stdout
    for said in (
        "takes settings and security, by name",
        "takes settings and security, not users",
        "settings are a dict of Kafka's names, not str",
        "security is a semel.Security",
    ):
        assert said in done.stdout, done.stdout


def test_the_programs_of_the_page_about_security_work(tmp_path: Path) -> None:
    programs = [block.text for block in blocks_of(CHECKOUT / "docs" / "security.md") if "semel.Security(" in block.text]
    embedded, in_pytest = programs
    exec(compile(embedded, "security.md", "exec"), {})
    (tmp_path / "test_page.py").write_text(in_pytest)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "."]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert "1 passed" in done.stdout, done.stdout


def test_no_thread_is_left() -> None:
    before = threading.active_count()
    with semel.Broker(security=semel.Security(["alice"])) as broker:
        write(broker.client_settings())
    assert threading.active_count() <= before
