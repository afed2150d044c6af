"""A client whose `security.protocol` is not the listener's is told so, at once."""

from __future__ import annotations

import socket
import struct
import threading
import time

import pytest

import semel
from semel.errors import AuthenticationFailed, KafkaError, RequestTimedOut, TlsFailed
from semel.testing.fault_proxy import Cut, Fault, FaultProxy, Passing, Way
from semel.wire.apis import ApiKey

#: Well below the 60 s that a client tries on its own, and enough for a busy machine.
AT_ONCE_S = 25
SASL = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "secret"}


def refusal(settings: dict[str, object]) -> KafkaError:
    began = time.monotonic()
    with semel.Admin({**settings, "default.api.timeout.ms": 40_000}) as admin, pytest.raises(KafkaError) as refused:
        admin.list_topics()
    assert time.monotonic() - began < AT_ONCE_S, refused.value
    return refused.value


@pytest.mark.parametrize(("protocol", "more"), [("PLAINTEXT", {}), ("SASL_PLAINTEXT", SASL)])
@pytest.mark.parametrize("listener", ["SSL", "SASL_SSL"])
def test_a_client_without_tls_is_told_that_the_broker_speaks_it(
    protocol: str, more: dict[str, object], listener: str
) -> None:
    with semel.Broker(security=semel.Security(["alice"], listener)) as broker:
        told = refusal({"bootstrap.servers": broker.bootstrap_servers, "security.protocol": protocol, **more})
    assert isinstance(told, TlsFailed)
    assert "speaks TLS: set security.protocol to SSL or SASL_SSL" in str(told)


@pytest.mark.parametrize(("protocol", "more"), [("SSL", {}), ("SASL_SSL", SASL)])
@pytest.mark.parametrize("listener", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_a_client_with_tls_is_told_that_the_broker_does_not_speak_it(
    protocol: str, more: dict[str, object], listener: str
) -> None:
    security = semel.Security(["alice"], listener) if listener != "PLAINTEXT" else None
    with semel.Broker(security=security) as broker:
        told = refusal({"bootstrap.servers": broker.bootstrap_servers, "security.protocol": protocol, **more})
    assert isinstance(told, TlsFailed)
    assert "does not speak TLS: set security.protocol to PLAINTEXT or SASL_PLAINTEXT" in str(told)


def test_a_port_that_hangs_up_with_and_without_tls_is_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        met = 0

        def hang_up() -> None:
            nonlocal met
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                connection.recv(10)
                connection.close()
                met += 1

        away = threading.Thread(target=hang_up)
        away.start()
        settings = {"bootstrap.servers": address, "security.protocol": "SSL", "default.api.timeout.ms": 3_000}
        with semel.Admin(settings) as admin, pytest.raises(RequestTimedOut, match="instead of speaking TLS"):
            admin.list_topics()
        listening.shutdown(socket.SHUT_RDWR)
        away.join()
        assert met > 2, "a broker that is starting may hang up, too"


@pytest.mark.parametrize(("listener", "protocol"), [("SASL_PLAINTEXT", "PLAINTEXT"), ("SASL_SSL", "SSL")])
def test_a_client_without_sasl_is_told_that_the_broker_asks_for_it(listener: str, protocol: str) -> None:
    with semel.Broker(security=semel.Security(["alice"], listener)) as broker:
        trust = {} if protocol == "PLAINTEXT" else {
            "ssl.truststore.location": broker.client_settings("alice")["ssl.ca.location"]
        }  # fmt: skip
        told = refusal({"bootstrap.servers": broker.bootstrap_servers, "security.protocol": protocol, **trust})
    assert isinstance(told, AuthenticationFailed)
    assert f"security.protocol={protocol} says nothing: set it to {listener}" in str(told)
    assert "SCRAM-SHA-512" in str(told)


def test_a_broker_that_hangs_up_and_wants_no_sasl_is_tried_again() -> None:
    cut = iter([Cut(), Cut()])

    def lose_the_first_answers(passing: Passing) -> Fault | None:
        is_answer = passing.way is Way.RESPONSE and passing.api_key == ApiKey.METADATA
        return next(cut, None) if is_answer else None

    with semel.Broker() as broker, FaultProxy(broker.bootstrap_servers, lose_the_first_answers) as proxy:
        with semel.Admin({"bootstrap.servers": proxy.bootstrap_servers}) as admin:
            assert admin.list_topics() == []
        assert proxy.passed[Way.REQUEST, ApiKey.SASL_HANDSHAKE] == 1, "it is asked once, and not after each failure"


def test_the_last_word_to_a_request_without_tls_is_an_alert_and_a_scanner_hears_nothing() -> None:
    with semel.Broker(security=semel.Security(["alice"], "SSL")) as broker:
        host, port = broker.bootstrap_servers.rsplit(":", 1)
        request, alert = struct.pack(">ihhih", 10, 18, 0, 1, -1), b"\x15\x03\x03\x00\x02\x02\x0a"
        for sent, heard in ((request, alert), (b"GET /", b"")):
            with socket.create_connection((host, int(port)), 20) as connection:
                connection.sendall(sent)
                received = b""
                try:
                    while piece := connection.recv(100):
                        received += piece
                except ConnectionResetError:
                    pass
                assert received == heard
