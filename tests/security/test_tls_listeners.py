"""Listeners with TLS, seen from outside: a broker process with a listener of each kind, and each way to set one up."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

import semel
from semel.broker.embedded import Broker
from semel.broker.listeners import Listener
from semel.broker.tls_listeners import TlsListeners
from semel.config import BROKER, ConfigError
from semel.machines.security.distinguished_names import valid_until
from semel.security.development import Certificate
from semel.wire.messages.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from semel.wire.messages.metadata import MetadataRequest
from tests.broker.raw import Raw, batch
from tests.security.conftest import LISTENERS, PASSWORD, PROTOCOLS, USER, Locks
from tests.security.sasl_talk import Talk
from tests.security.test_tls import as_pkcs12
from tests.security.tls_peers import TlsRaw, TlsTalk, dial, fingerprint, fingerprint_of, trusting
from tests.support.processes import BrokerProcess, free_port
from tests.support.waiting import until

SECRET = "hunter2-never-shown"


@pytest.fixture
def locks(tmp_path: Path) -> Locks:
    return Locks(tmp_path)


def tls_settings(locks: Locks, **more: object) -> dict[str, object]:
    """A broker with one TLS listener."""
    found: dict[str, object] = {
        "listeners": "SSL://127.0.0.1:0",
        "advertised.listeners": "SSL://localhost:0",
        "ssl.keystore.location": str(locks.broker_file),
    }
    return found | {name.replace("_", "."): value for name, value in more.items()}


def meet(settings: dict[str, object], context: ssl.SSLContext) -> tuple[str, str]:
    """Start a broker, have it answer a request, and say what version and cipher suite were spoken."""
    with Broker(settings=settings) as broker, TlsRaw(broker.bootstrap_servers, context) as raw:
        raw.create("topic")
        cipher, version = raw.socket.cipher(), raw.socket.version()
        assert cipher is not None and version is not None
        return version, cipher[0]


def refused(settings: dict[str, object]) -> str:
    """Why a broker with these settings does not start."""
    with pytest.raises(ConfigError) as raised:
        Broker(settings=settings).start()
    assert SECRET not in str(raised.value) and "PRIVATE KEY" not in str(raised.value)
    return str(raised.value)


# Several listeners


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Locks]]:
    """A broker process with a listener of each kind, under names of their own."""
    folder = tmp_path_factory.mktemp("listeners")
    locks = Locks(folder)
    plain = free_port()
    ports = {"INSIDE": plain, **locks.ports}
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "advertised.listeners": ",".join(
            f"{name}://{'127.0.0.1' if name == 'INSIDE' else 'localhost'}:{port}" for name, port in ports.items()
        ),
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,"
        + ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
        "ssl.keystore.location": locks.broker_file,
        "ssl.truststore.location": locks.authority_file,
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=([a-z]+).*$/$1/U,DEFAULT",
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
    }
    users = folder / "users"
    users.write_text(f"{USER}:{PASSWORD}\n")
    users.chmod(0o600)
    settings["semel.sasl.plain.users.file"] = users
    with BrokerProcess(folder / "data", settings=settings, port=plain, log_level="info") as running:
        yield running, locks


def peer_of(listener: str, process: tuple[BrokerProcess, Locks]) -> Raw:
    broker, locks = process
    if listener == "INSIDE":
        return Raw(broker.bootstrap_servers)
    address, sasl = locks.address(listener), listener.startswith("SASL_")
    if "SSL" in PROTOCOLS[listener]:
        context = trusting(locks, certificate=locks.client_file if listener == "MUTUAL" else None)
        peer: Raw = (TlsTalk if sasl else TlsRaw)(address, context)
    else:
        peer = Talk(address)
    if isinstance(peer, Talk) and sasl:
        assert peer.plain(USER, PASSWORD).error_code == 0
    return peer


@pytest.mark.parametrize("listener", ["INSIDE", *LISTENERS])
def test_a_client_is_told_the_address_of_the_listener_it_came_by(
    process: tuple[BrokerProcess, Locks], listener: str
) -> None:
    broker, locks = process
    expected = ("127.0.0.1", broker.port) if listener == "INSIDE" else ("localhost", locks.ports[listener])
    with peer_of(listener, process) as peer:
        assert [(one.host, one.port) for one in peer.ask(MetadataRequest(topics=None)).brokers] == [expected]


def test_what_one_listener_writes_every_other_reads(process: tuple[BrokerProcess, Locks]) -> None:
    names = ["INSIDE", *LISTENERS]
    with peer_of("INSIDE", process) as inside:
        inside.create("shared")
    for number, name in enumerate(names):
        with peer_of(name, process) as peer:
            assert peer.produce("shared", batch(name.encode() * 1000)).error_code == 0
            assert peer.values("shared") == [one.encode() * 1000 for one in names[: number + 1]]


def test_a_tls_client_on_a_plaintext_listener_is_ended_at_once_and_the_log_says_why(
    process: tuple[BrokerProcess, Locks],
) -> None:
    broker, locks = process
    with pytest.raises((ssl.SSLError, ConnectionError)):
        TlsRaw(broker.bootstrap_servers, trusting(locks))
    broker.running.wait_for_line("listener INSIDE: closing .*: a TLS handshake, and this listener has no TLS")


def test_a_plaintext_client_on_a_tls_listener_is_ended_at_once_and_the_log_says_why(
    process: tuple[BrokerProcess, Locks],
) -> None:
    broker, locks = process
    with Raw(locks.address("SSL")) as raw, pytest.raises(ConnectionError):
        raw.ask(MetadataRequest(topics=None))
    broker.running.wait_for_line("listener SSL: closing .*: a request without TLS; .*security.protocol=SSL")


def test_a_setting_for_a_listener_in_upper_case_is_refused_and_not_ignored(locks: Locks) -> None:
    settings = tls_settings(locks) | {"listener.name.SSL.ssl.client.auth": "required"}
    assert "write the listener's name in lower case, listener.name.ssl." in refused(settings)


# Versions and cipher suites


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls_are_spoken(locks: Locks, version: ssl.TLSVersion) -> None:
    spoken, _ = meet(tls_settings(locks), trusting(locks, version=version))
    assert spoken == version.name.replace("_", ".").replace("v1.", "v1.")


@pytest.mark.parametrize(
    ("settings", "version", "is_spoken"),
    [
        ({"ssl_enabled_protocols": "TLSv1.2"}, ssl.TLSVersion.TLSv1_3, False),
        ({"ssl_enabled_protocols": "TLSv1.2"}, ssl.TLSVersion.TLSv1_2, True),
        ({"ssl_enabled_protocols": "TLSv1.3"}, ssl.TLSVersion.TLSv1_2, False),
        ({"ssl_protocol": "TLSv1.2"}, ssl.TLSVersion.TLSv1_3, False),
        ({"listener_name_ssl_ssl_protocol": "TLSv1.2"}, ssl.TLSVersion.TLSv1_3, False),
        # A list with suites of one version only is for that version only.
        ({"ssl_cipher_suites": "ECDHE-ECDSA-AES128-GCM-SHA256"}, ssl.TLSVersion.TLSv1_3, False),
        ({"ssl_cipher_suites": "TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256,TLS_CHACHA20_POLY1305_SHA256"},
         ssl.TLSVersion.TLSv1_2, False),
    ],
)
def test_a_version_that_is_not_enabled_is_not_spoken(
    locks: Locks, settings: dict[str, object], version: ssl.TLSVersion, is_spoken: bool
) -> None:
    context = trusting(locks, version=version)
    if is_spoken:
        meet(tls_settings(locks, **settings), context)
    else:
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version|handshake.failure"):
            meet(tls_settings(locks, **settings), context)


def test_nothing_older_than_tls_1_2_is_spoken_whatever_is_set(locks: Locks) -> None:
    assert "ssl.enabled.protocols" in refused(tls_settings(locks, ssl_enabled_protocols="TLSv1.1"))
    context = trusting(locks)
    context.set_ciphers("ALL:@SECLEVEL=0")  # or the client itself would not speak it
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match=r"(?i)alert.protocol.version"):
        meet(tls_settings(locks), context)


@pytest.mark.parametrize(
    "name", ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"], ids=["Java", "OpenSSL"]
)
def test_a_cipher_suite_is_used_by_either_name_and_no_other_is(locks: Locks, name: str) -> None:
    settings = tls_settings(locks, ssl_cipher_suites=name)
    assert meet(settings, trusting(locks)) == ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384")
    with pytest.raises(ssl.SSLError, match=r"(?i)handshake.failure"):
        meet(settings, trusting(locks, ciphers="ECDHE-ECDSA-AES128-GCM-SHA256", version=ssl.TLSVersion.TLSv1_2))


#: What Java calls the suites that both know, and what OpenSSL calls them.
SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256": "DHE-RSA-AES128-GCM-SHA256",
    "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "DHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384": "ECDHE-RSA-AES256-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
}


def test_every_java_name_of_a_suite_is_one_that_openssl_knows() -> None:
    from semel.security.tls import _openssl_name

    known = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    known.set_ciphers("ALL:@SECLEVEL=0")
    names = {suite["name"] for suite in known.get_ciphers()}
    for java, expected in SUITES.items():
        assert _openssl_name(java) == expected
        assert expected in names


def test_some_suites_of_tls_1_3_alone_are_refused_because_the_others_would_be_used_too(locks: Locks) -> None:
    text = refused(tls_settings(locks, ssl_cipher_suites="TLS_AES_256_GCM_SHA384"))
    assert text.startswith("listener SSL: ssl.cipher.suites: this Python cannot choose among the suites of TLS 1.3")


# Keys and certificates, in each form


def sealed_key(held: Certificate) -> str:
    key = load_pem_private_key(held.key_pem.encode(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(SECRET.encode())).decode()


FORMS = ["file", "two files", "inline", "inline in one line", "encrypted key", "encrypted file", "PKCS12"]


@pytest.mark.parametrize("form", FORMS)
def test_a_certificate_is_shown_in_whatever_form_it_is_given(locks: Locks, tmp_path: Path, form: str) -> None:
    held = locks.authority.issue("broker", hosts=["localhost"])
    both, public = held.write(tmp_path, "own")
    (tmp_path / "key.pem").write_text(held.key_pem)
    (tmp_path / "sealed.pem").write_text(held.certificate_pem + sealed_key(held))
    (tmp_path / "own.p12").write_bytes(as_pkcs12(held, locks.authority, SECRET))
    settings = {
        "file": {"ssl.keystore.location": str(both)},
        "two files": {"ssl.keystore.location": str(public), "ssl.key.location": str(tmp_path / "key.pem")},
        "inline": {"ssl.keystore.certificate.chain": held.certificate_pem, "ssl.keystore.key": held.key_pem},
        "inline in one line": {
            "ssl.keystore.certificate.chain": held.certificate_pem.replace("\n", " "),
            "ssl.keystore.key": held.key_pem.replace("\n", "\\n"),
        },
        "encrypted key": {
            "ssl.keystore.certificate.chain": held.certificate_pem,
            "ssl.keystore.key": sealed_key(held),
            "ssl.key.password": SECRET,
        },
        "encrypted file": {"ssl.keystore.location": str(tmp_path / "sealed.pem"), "ssl.key.password": SECRET},
        "PKCS12": {
            "ssl.keystore.location": str(tmp_path / "own.p12"),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": SECRET,
        },
    }[form]
    given: dict[str, object] = {f"listener.name.ssl.{name}": value for name, value in settings.items()}
    given["listeners"] = "SSL://127.0.0.1:0"
    with Broker(settings=given) as broker:
        assert fingerprint(broker.bootstrap_servers, trusting(locks)) == fingerprint_of(held.certificate_pem)


def test_a_broker_that_could_not_be_trusted_does_not_start_and_says_why_in_one_sentence(
    locks: Locks, tmp_path: Path
) -> None:
    held, other = locks.authority.issue("broker"), locks.authority.issue("other")
    (tmp_path / "own.p12").write_bytes(as_pkcs12(held, locks.authority, SECRET))
    (tmp_path / "old.jks").write_bytes(b"\xfe\xed\xfe\xed" + bytes(20))
    (tmp_path / "empty.pem").write_text("")
    inline = {"ssl.keystore.certificate.chain": held.certificate_pem}
    store, password = "ssl.keystore.location", {"ssl.keystore.password": "x" + SECRET}
    for settings, words in [
        ({}, "ssl.keystore.location: a listener with TLS needs a certificate and its private key"),
        ({store: str(tmp_path / "absent")}, "ssl.keystore.location: cannot read .*absent: No such file"),
        ({store: str(tmp_path / "empty.pem")}, "ssl.keystore.location: there is no private key"),
        ({store: str(tmp_path / "own.p12"), **password}, "ssl.keystore.password: is wrong"),
        ({store: str(tmp_path / "old.jks")}, "is a Java key store .*keytool -importkeystore -srckeystore"),
        ({store: str(locks.broker_file), "ssl.keystore.type": "JKS"}, "is a Java key store .*keytool"),
        ({**inline, "ssl.keystore.key": other.key_pem}, "ssl.keystore.key: the private key does not belong to the"),
        ({**inline, "ssl.keystore.key": sealed_key(held), "ssl.key.password": "x" + SECRET},
         "ssl.key.password: is wrong"),
        ({**inline, "ssl.keystore.key": held.key_pem, "ssl.client.auth": "required"},
         "ssl.truststore.location: ssl.client.auth=required needs it"),
        ({store: str(locks.broker_file), "ssl.principal.mapping.rules": "RULE:("}, "ssl.principal.mapping.rules"),
    ]:
        for prefix in ("", "listener.name.clients."):
            given = {prefix + name: value for name, value in settings.items()}
            text = refused(
                {
                    "listeners": "CLIENTS://127.0.0.1:0",
                    "listener.security.protocol.map": "CLIENTS:SSL",
                    **given,
                }
            )
            assert re.match(f"listener CLIENTS: .*{words}", text), text
            assert "\n" not in text


def test_an_expired_certificate_of_our_own_is_a_warning(
    locks: Locks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begins = datetime.now(UTC) - timedelta(days=9)
    held = locks.authority.issue("broker", hosts=["localhost"], begins=begins, lifetime=timedelta(days=1))
    file, _ = held.write(tmp_path, "old")
    with Broker(settings=tls_settings(locks) | {"ssl.keystore.location": str(file)}):
        assert "listener SSL: its certificate has expired at" in caplog.text
    caplog.clear()
    with Broker(settings=tls_settings(locks)):
        assert "expired" not in caplog.text


def test_a_certificate_that_ends_while_the_broker_runs_is_told_a_week_before_and_at_its_end(
    locks: Locks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = datetime.now(UTC)
    held = locks.authority.issue("broker", hosts=["localhost"], begins=now, lifetime=timedelta(days=30))
    file, _ = held.write(tmp_path, "short")
    settings = tls_settings(locks) | {"ssl.keystore.location": str(file)}
    listeners = TlsListeners([Listener("SSL", "127.0.0.1", 0, "SSL")])
    listeners.use(listeners.read(BROKER.parse(settings)))
    told = []
    for days in (1, 22, 24, 25, 29, 31, 32):
        caplog.clear()
        listeners.warn_of_ends(now + timedelta(days=days))
        told += [(days, "expired" in one.message) for one in caplog.records]
    assert told == [(24, False), (31, True)]
    listeners.use(listeners.read(BROKER.parse(tls_settings(locks))))
    caplog.clear()
    listeners.warn_of_ends(now)
    assert caplog.records == []


@pytest.mark.parametrize("year", [2026, 2049, 2050, 2120])
def test_the_end_of_a_certificate_is_read_in_both_forms_of_a_date(locks: Locks, year: int) -> None:
    begins = datetime(year, 1, 31, 23, 59, 58, tzinfo=UTC)
    held = locks.authority.issue("broker", begins=begins, lifetime=timedelta(days=1))
    found = valid_until(ssl.PEM_cert_to_DER_cert(held.certificate_pem))
    assert found == begins + timedelta(days=1)


# Clients with certificates


@pytest.mark.parametrize(
    ("asks", "shows", "principal"),
    [
        ("none", True, "User:ANONYMOUS"),
        ("requested", False, "User:ANONYMOUS"),
        ("requested", True, "User:CN=client"),
        ("required", True, "User:CN=client"),
        ("required", False, None),
    ],
)
def test_a_certificate_is_asked_for_as_set_and_names_its_client(
    locks: Locks, asks: str, shows: bool, principal: str | None
) -> None:
    settings = tls_settings(locks, ssl_client_auth=asks, ssl_truststore_location=str(locks.authority_file))
    context = trusting(locks, certificate=locks.client_file if shows else None)
    with Broker(settings=settings) as broker:
        if principal is None:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                TlsRaw(broker.bootstrap_servers, context).create("topic")
            until(lambda: broker.server.metrics.failed_authentications["SSL"] == 1, what="the failure to be counted")
        else:
            with TlsRaw(broker.bootstrap_servers, context) as raw:
                raw.create("topic")
                (open_one,) = broker.server.connections._open
                assert open_one.who == principal


def test_a_certificate_of_a_stranger_is_refused_even_where_none_is_needed(locks: Locks, tmp_path: Path) -> None:
    other = Locks(tmp_path_of(tmp_path, "other"))
    settings = tls_settings(locks, ssl_client_auth="requested", ssl_truststore_location=str(locks.authority_file))
    with Broker(settings=settings) as broker, pytest.raises((ssl.SSLError, ConnectionError)):
        TlsRaw(broker.bootstrap_servers, trusting(locks, certificate=other.client_file)).create("topic")


def tmp_path_of(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made


def test_a_name_that_no_rule_fits_is_refused_and_audited(locks: Locks, caplog: pytest.LogCaptureFixture) -> None:
    settings = tls_settings(
        locks,
        ssl_client_auth="required",
        ssl_truststore_location=str(locks.authority_file),
        ssl_principal_mapping_rules="RULE:^CN=admin-(.*)$/$1/",
    )
    with Broker(settings=settings) as broker:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            TlsRaw(broker.bootstrap_servers, trusting(locks, certificate=locks.client_file)).create("topic")
        until(lambda: '"event": "authentication failed"' in caplog.text, what="the audit line")
        assert '"mechanism": "SSL"' in caplog.text


# Certificates that change


def rewrite(held: Certificate, file: Path) -> None:
    """As a good tool does: a new file is put in the place of the old one."""
    beside = file.with_suffix(".new")
    beside.write_text(held.certificate_pem + held.key_pem)
    os.replace(beside, file)


def test_a_new_certificate_is_shown_to_new_connections_and_open_ones_stay(locks: Locks) -> None:
    new = locks.authority.issue("broker", hosts=["localhost"])
    with Broker(settings=tls_settings(locks)) as broker:
        address, context = broker.bootstrap_servers, trusting(locks)
        with TlsRaw(address, context) as early:
            early.create("topic")
            rewrite(new, locks.broker_file)
            shown = fingerprint_of(new.certificate_pem)
            until(lambda: fingerprint(address, context) == shown, what="the new certificate")
            assert early.produce("topic", batch(b"still here")).error_code == 0


def test_a_new_certificate_that_cannot_be_used_changes_nothing_and_is_logged_once(
    locks: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = locks.authority.issue("broker", hosts=["localhost"]), locks.authority.issue("other")
    with Broker(settings=tls_settings(locks)) as broker:
        address, context = broker.bootstrap_servers, trusting(locks)
        before = fingerprint(address, context)
        locks.broker_file.write_text(one.certificate_pem + two.key_pem)
        until(lambda: "the certificate stays as it was" in caplog.text, what="the log line")
        looks = count_looks(broker)
        until(lambda: looks() >= 2, what="two more looks")
        said = [line for line in caplog.text.splitlines() if "stays as it was" in line]
        assert len(said) == 1
        assert "listener SSL: ssl.keystore.location: the private key does not belong to the certificate" in said[0]
        assert "PRIVATE KEY" not in caplog.text
        assert fingerprint(address, context) == before
        rewrite(one, locks.broker_file)
        shown = fingerprint_of(one.certificate_pem)
        until(lambda: fingerprint(address, context) == shown, what="the good one")


def count_looks(broker: Broker) -> Callable[[], int]:
    """How often the files were looked at from now on."""
    tls = broker.server.listening._tls
    count, look = [0], tls.changed

    def counted() -> object:
        count[0] += 1
        return look()

    tls.changed = counted  # type: ignore[method-assign, assignment]
    return lambda: count[0]


def alter(raw: Raw, validate_only: bool = False, **settings: str | None) -> tuple[int, str | None]:
    configs = [
        IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=int(value is None), value=value)
        for name, value in settings.items()
    ]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    asked = resource(resource_type=4, resource_name="1", configs=configs)
    answer = raw.ask(IncrementalAlterConfigsRequest(resources=[asked], validate_only=validate_only)).responses[0]
    return answer.error_code, answer.error_message


def describe(raw: Raw) -> Any:
    row = DescribeConfigsRequest.DescribeConfigsResource
    asked = row(resource_type=4, resource_name="1", configuration_keys=None)
    return raw.ask(DescribeConfigsRequest(resources=[asked], include_synonyms=True)).results[0]


def test_a_key_store_can_be_changed_while_the_broker_runs_and_after_a_restart_too(
    locks: Locks, tmp_path: Path
) -> None:
    new = locks.authority.issue("broker", hosts=["localhost"])
    (tmp_path / "new.p12").write_bytes(as_pkcs12(new, locks.authority, SECRET))
    name = "listener.name.ssl.ssl.keystore."
    change = {name + "location": str(tmp_path / "new.p12"), name + "type": "PKCS12", name + "password": SECRET}
    settings = {**tls_settings(locks), "node.id": 1}
    context, data = trusting(locks), tmp_path / "data"
    with Broker(data, settings=settings) as broker:
        address = broker.bootstrap_servers
        before = fingerprint(address, context)
        with TlsRaw(address, context) as raw:
            code, why = alter(raw, **{**change, name + "password": "x" + SECRET})
            assert code == 42 and why is not None and "listener SSL: ssl.keystore.password: is wrong" in why
            assert SECRET not in why
            assert alter(raw, validate_only=True, **change) == (0, None)
            assert fingerprint(address, context) == before
            assert alter(raw, **change)[0] == 0
            assert fingerprint(address, context) == fingerprint_of(new.certificate_pem)
            described = describe(raw)
        rows = {row.name: row for row in described.configs}
        row = rows[name + "password"]
        assert (row.value, row.is_sensitive) == (None, True) and row.synonyms and not any(
            one.value for one in row.synonyms
        )
        assert SECRET not in repr(described)
    with Broker(data, settings=settings) as broker:
        assert fingerprint(broker.bootstrap_servers, context) == fingerprint_of(new.certificate_pem)
        with TlsRaw(broker.bootstrap_servers, context) as raw:
            assert alter(raw, **dict.fromkeys(change, None))[0] == 0
        assert fingerprint(broker.bootstrap_servers, context) == before


def test_naming_a_file_again_has_it_read_again_at_once(locks: Locks) -> None:
    new = locks.authority.issue("broker", hosts=["localhost"])
    with Broker(settings={**tls_settings(locks), "node.id": 1}) as broker:
        address, context = broker.bootstrap_servers, trusting(locks)
        with TlsRaw(address, context) as raw:
            rewrite(new, locks.broker_file)
            assert alter(raw, **{"listener.name.ssl.ssl.keystore.location": str(locks.broker_file)})[0] == 0
        assert fingerprint(address, context) == fingerprint_of(new.certificate_pem)


# Secrets


def test_planted_secrets_are_found_nowhere(locks: Locks, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    held = locks.authority.issue("broker", hosts=["localhost"])
    sealed = sealed_key(held)
    planted = [SECRET, "users-pass-phrase", sealed.splitlines()[2]]
    settings = {
        "listeners": f"SSL://127.0.0.1:{free_port()},SASL_SSL://127.0.0.1:{free_port()},PLAINTEXT://127.0.0.1:0",
        "ssl.keystore.certificate.chain": held.certificate_pem,
        "ssl.keystore.key": sealed,
        "ssl.key.password": SECRET,
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule "
        'required user_alice="users-pass-phrase";',
        "node.id": 1,
    }
    caplog.set_level("DEBUG")
    found = []
    with Broker(settings=settings) as broker:
        port = broker.server.listening.listeners[1].endpoint[1]
        for password in ("users-pass-phrase", "wrong users-pass-phrase"):
            with TlsTalk(f"localhost:{port}", trusting(locks)) as talk:
                talk.plain("alice", password)
        with dial(broker.bootstrap_servers) as peer:
            peer.sendall(b"users-pass-phrase")
        with Raw(f"127.0.0.1:{broker.server.listening.listeners[2].endpoint[1]}") as raw:
            found.append(repr(describe(raw)))
            assert "ssl.key.password" in found[-1]
            found.append(str(alter(raw, **{"listener.name.ssl.ssl.key.password": "users-pass-phrase"})))
        server = broker.server
        gate = server.listening.doors["SASL_SSL"]
        for one in (server.settings, server, server.listening, gate, *gate.mechanisms.values(), server.listening._tls,
                    server.listening._tls["SSL"], server.stores.broker_settings):
            found.append(repr(one))
    found.append(caplog.text)
    for wrong in (["--set", f"ssl.key.password:{SECRET}"], ["--set", f"ssl.key.pasword={SECRET}"],
                  ["--set", f"ssl.key.password={SECRET}", "--set", "listeners=SSL://127.0.0.1:0",
                   "--set", f"ssl.keystore.location={locks.authority_file}"],
                  ["--set", f"ssl.keystore.key={sealed}", "--set", "listeners=SSL://127.0.0.1:0"]):
        found.append(starting_fails(tmp_path, wrong))
    for text in found:
        for secret in planted:
            assert secret not in text
    assert "alice" in caplog.text  # the log was looked at


def starting_fails(tmp_path: Path, options: list[str]) -> str:
    command = [sys.executable, "-m", "semel", "broker", "start", "--log-level", "debug"]
    command += ["--data", str(tmp_path / "none")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 2, done
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stdout + done.stderr


def test_our_own_client_reads_and_writes_through_each_listener(process: tuple[BrokerProcess, Locks]) -> None:
    broker, locks = process
    with semel.Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.create_topics([semel.NewTopic("ours", 1)])
    for number, listener in enumerate(LISTENERS):
        settings = locks.settings(listener, "PLAIN" if "SASL" in listener else None)
        with semel.Producer(settings) as producer:
            assert producer.send("ours", value=b"%d" % number).result(20).offset == number


def test_a_socket_without_a_word_costs_no_tls_object(locks: Locks) -> None:
    with Broker(settings=tls_settings(locks)) as broker:
        host, port = broker.bootstrap_servers.rsplit(":", 1)
        with socket.create_connection((host, int(port))):
            until(lambda: len(broker.server.connections) == 1, what="the connection")
            (open_one,) = broker.server.connections._open
            assert open_one.transport._tls is None
