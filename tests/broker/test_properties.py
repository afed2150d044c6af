"""A Kafka server.properties works as it is: Java's syntax, Kafka's names, listeners for clients and for controllers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.broker.embedded import Broker, new_event_loop
from semel.broker.listeners import advertised_note, client_listeners, parse_listener
from semel.broker.server import BrokerServer
from semel.cli.broker import gather_settings
from semel.config import BROKER, ConfigError
from semel.properties import read_properties
from tests.broker.raw import Raw, batch
from tests.support.processes import free_port

STOCK = """
# A server.properties as Apache Kafka 4 ships it
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:{port},CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:{port},CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={data}
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def test_the_file_kafka_ships_starts_a_broker(tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "server.properties"
    file.write_text(STOCK.format(port=port, data=tmp_path / "data"))
    settings = gather_settings(None, None, str(file), [])
    given = {name: settings[name] for name in settings.explicit}
    with Broker(tmp_path / "data", settings=given) as broker, Raw(f"127.0.0.1:{port}") as raw:
        assert broker.bootstrap_servers == f"localhost:{port}"
        raw.create("t")
        assert raw.produce("t", batch(b"a")).error_code == 0


def test_the_file_of_a_node_that_still_knew_zookeeper_is_read() -> None:
    given = read_properties("broker.id=0\nlog.dirs=/d\nzookeeper.connect=localhost:2181\nlog.cleaner.threads=2\n")
    assert BROKER.parse(given).explicit == {"broker.id", "log.dirs", "zookeeper.connect"}


def test_a_zookeeper_that_is_not_there_is_told_at_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    settings = {"zookeeper.connect": f"127.0.0.1:{free_port()}", "zookeeper.session.timeout.ms": 1000}
    with pytest.raises(ConfigError, match="Is ZooKeeper running there"):
        Broker(tmp_path / "data", settings=settings).start()
    assert not (tmp_path / "data" / "meta.properties").exists()


def test_a_typo_is_still_an_error_and_so_is_a_promise_nobody_would_keep() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'log\.segment\.bytes'"):
        BROKER.parse({"log.segment.byte": "1"})
    with pytest.raises(ConfigError, match="must be one of"):
        BROKER.parse({"authorizer.class.name": "org.example.OurOwnAuthorizer"})
    with pytest.raises(ConfigError, match="not served: policies are Java classes"):
        BROKER.parse({"create.topic.policy.class.name": "org.example.OurPolicy"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=b", "b"),
        ("a: b", "b"),
        ("a b", "b"),
        ("   a\t=  b", "b"),
        ("a=b=c:d", "b=c:d"),
        ("a=one,\\\n     two", "one,two"),
        ("a=ends with two \\\\\nb=", "ends with two \\"),
        ("a=\\u00e9\\tx\\q", "\u00e9\txq"),
        ("# a=no\n! a=no\na=yes", "yes"),
        ("a=first\ra=second", "second"),
        ("a", ""),
        ("a=\\ud83d\\ude00", "\U0001f600"),
        ("\\\n# a=no\na=yes", "yes"),
    ],
)
def test_properties_are_read_by_javas_rules(text: str, value: str) -> None:
    assert read_properties(text)["a"] == value


def test_a_unicode_escape_without_four_digits_is_an_error_as_in_java(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="four hexadecimal digits"):
        read_properties("path=C:\\users")
    file = tmp_path / "server.properties"
    file.write_text("log.dirs=C:\\users\n")
    with pytest.raises(ConfigError, match=f"--config: {file}: .*hexadecimal"):
        gather_settings(None, None, str(file), [])
    file.write_bytes(b"log.dirs=\xff\n")
    with pytest.raises(ConfigError, match="not text in UTF-8"):
        gather_settings(None, None, str(file), [])


def test_no_error_of_a_file_shows_a_secret() -> None:
    with pytest.raises(ValueError, match=r"^sasl\.password has a \\u without") as refused:
        read_properties("sasl.password=hunter2\\user\n")
    assert "hunter2" not in str(refused.value)
    key = "-----BEGIN PRIVATE KEY-----\nhunter2=\n-----END PRIVATE KEY-----\n"
    joined = key.strip().replace("\n", "\\\n")
    assert "hunter2" in read_properties(f"ssl.keystore.key={joined}")["ssl.keystore.key"]
    for text in (key, f"ssl.keystore.key={key}"):
        with pytest.raises(ValueError, match="a key stands where a setting should") as refused:
            read_properties(text)
        assert "hunter2" not in str(refused.value)


def test_an_escaped_sign_belongs_to_the_name() -> None:
    assert read_properties("a\\=b\\ c=d") == {"a=b c": "d"}


def test_listeners_have_names_and_the_map_says_what_they_speak() -> None:
    both = "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT"
    listeners = "OUTSIDE://:9094,INSIDE://[::1]:9092"
    settings = BROKER.parse({"listeners": listeners, "listener.security.protocol.map": both})
    assert [(one.name, one.host, one.port) for one in client_listeners(settings)] == [
        ("OUTSIDE", "", 9094),
        ("INSIDE", "::1", 9092),
    ]
    secret = BROKER.parse({"listeners": "OUTSIDE://:9094", "listener.security.protocol.map": "OUTSIDE:SASL_TLS"})
    with pytest.raises(ConfigError, match="OUTSIDE://:9094 asks for SASL_TLS"):
        client_listeners(secret)


@pytest.mark.parametrize(
    "text",
    ["host", "host:port", "::1:9092", "PLAINTEXT://h:70000", "PLAINTEXT://h/x:1", "[::1", "[::1:9092", "[h:1", "h]:1"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        parse_listener(text)


def test_an_ipv6_address_is_shown_in_brackets(tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with Broker(tmp_path, listen="[::1]:0") as broker:
        assert broker.bootstrap_servers.startswith("[::1]:")


def test_a_broker_that_listens_everywhere_says_what_it_advertises() -> None:
    everywhere = BROKER.parse({"listeners": "PLAINTEXT://0.0.0.0:9092"})
    note = advertised_note(everywhere, ("localhost", 9092))
    assert note is not None
    assert "localhost:9092" in note
    assert "advertised.listeners=" in note
    assert advertised_note(BROKER.parse(), ("127.0.0.1", 9092)) is None


@pytest.mark.parametrize(
    "listeners",
    [
        "SASL_SSL://127.0.0.1:9092,SSL://127.0.0.1:9092",
        "SSL://:9092,PLAINTEXT://127.0.0.1:9092",
        "SSL://0.0.0.0:9092,PLAINTEXT://127.0.0.1:9092",
        "SSL://[::1]:9092,PLAINTEXT://[::]:9092",
    ],
)
def test_two_listeners_on_one_address_are_refused(listeners: str) -> None:
    with pytest.raises(ConfigError, match="are both on port 9092; give each its own"):
        client_listeners(BROKER.parse({"listeners": listeners}))


def test_listeners_may_share_a_port_on_different_addresses() -> None:
    for listeners in ("A://127.0.0.1:0,B://127.0.0.1:0", "A://127.0.0.1:9092,B://127.0.0.2:9092,C://[::]:9092"):
        protocols = "A:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT"
        settings = BROKER.parse({"listeners": listeners, "listener.security.protocol.map": protocols})
        assert len(client_listeners(settings)) == listeners.count("://")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_event_loop])
def test_an_address_that_is_lost_between_binding_and_listening_is_told(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    # Both may bind it while neither listens. Without a look, a broker on uvloop would be "ready" and deaf.
    with socket.socket() as other, asyncio.Runner(loop_factory=new_loop) as runner:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        listener = f"PLAINTEXT://127.0.0.1:{other.getsockname()[1]}"
        broker = BrokerServer(BROKER.parse({"listeners": listener, "log.dirs": str(tmp_path / "data")}))

        async def be_first(_: BrokerServer) -> None:
            other.listen()

        with pytest.raises(ConfigError, match="the address is in use"):
            runner.run(broker.start(be_first))


def test_an_address_that_cannot_be_had_is_explained_and_leaves_no_directory(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}: the address is in use.*--listen"):
            Broker(tmp_path / "new", listen=f"127.0.0.1:{port}").start()
    with pytest.raises(ConfigError, match=r"there is no host 'no-such-host\.invalid'"):
        Broker(tmp_path / "new", listen="no-such-host.invalid:9092").start()
    assert not (tmp_path / "new").exists()
