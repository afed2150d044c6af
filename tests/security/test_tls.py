"""TLS contexts from settings: what is trusted, what is refused, and what a mistake says."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate, load_pem_x509_certificates

import semel
from semel.config import ADMIN, ConfigError
from semel.errors import KafkaError, TlsFailed
from semel.net.connection import Connection
from semel.security.development import Certificate, DevelopmentAuthority
from semel.security.tls import client_context

SECRET = "hunter2-never-shown"


@pytest.fixture(scope="module")
def authority() -> DevelopmentAuthority:
    return DevelopmentAuthority()


def context(**settings: object) -> ssl.SSLContext:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    found = client_context(ADMIN.parse({"bootstrap.servers": "b:1", "security.protocol": "SSL", **given}))
    assert found is not None
    return found


def as_pkcs12(held: Certificate, authority: DevelopmentAuthority, password: str) -> bytes:
    key = load_pem_private_key(held.key_pem.encode(), None)
    return pkcs12.serialize_key_and_certificates(
        b"client",
        key,  # type: ignore[arg-type]
        load_pem_x509_certificate(held.certificate_pem.encode()),
        load_pem_x509_certificates(authority.certificate_pem.encode()),
        BestAvailableEncryption(password.encode()),
    )


async def handshake(server: Certificate, client: ssl.SSLContext, host: str = "localhost", **needs: object) -> None:
    """Connect to a server that holds a certificate; raises what the client raises."""
    held = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write((server.certificate_pem + server.key_pem).encode())
        file.flush()
        held.load_cert_chain(file.name)
    if needs.get("authority"):
        held.verify_mode = ssl.CERT_REQUIRED
        held.load_verify_locations(cadata=str(needs["authority"]))
        held.maximum_version = ssl.TLSVersion.TLSv1_2  # so that a refusal is part of the handshake

    listening = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=held)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        connection = await asyncio.wait_for(Connection.open(host, port, tls=client), 20)
        connection.close()


def test_a_certificate_of_a_trusted_authority_for_the_right_name_is_accepted(authority: DevelopmentAuthority) -> None:
    server = authority.issue("broker", hosts=["localhost"])
    asyncio.run(handshake(server, context(ssl_truststore_certificates=authority.certificate_pem)))


@pytest.mark.parametrize(
    ("begins", "days", "hosts", "why"),
    [
        (datetime.now(UTC) - timedelta(days=9), 1, ["localhost"], "its certificate has expired"),
        (datetime.now(UTC) + timedelta(days=9), 1, ["localhost"], "its certificate is not valid yet"),
        (None, 9, ["other.example"], "its certificate is for another name than 'localhost'"),
    ],
)
def test_each_fault_of_a_certificate_is_told_by_its_name(
    authority: DevelopmentAuthority, begins: datetime | None, days: int, hosts: list[str], why: str
) -> None:
    server = authority.issue("broker", hosts=hosts, begins=begins, lifetime=timedelta(days=days))
    trusting = context(ssl_truststore_certificates=authority.certificate_pem)
    with pytest.raises(TlsFailed, match=why):
        asyncio.run(handshake(server, trusting))


def test_another_authority_is_not_trusted(authority: DevelopmentAuthority) -> None:
    server = DevelopmentAuthority("stranger").issue("broker", hosts=["localhost"])
    with pytest.raises(TlsFailed, match="is not one of those we trust"):
        asyncio.run(handshake(server, context(ssl_truststore_certificates=authority.certificate_pem)))
    with pytest.raises(TlsFailed, match="is not one of those we trust"):
        asyncio.run(handshake(server, context()))


def test_the_name_is_not_checked_only_where_that_is_asked_for(authority: DevelopmentAuthority) -> None:
    server = authority.issue("broker", hosts=["other.example"])
    for algorithm in ("", "none"):
        settings = {
            "ssl_truststore_certificates": authority.certificate_pem,
            "ssl_endpoint_identification_algorithm": algorithm,
        }
        asyncio.run(handshake(server, context(**settings)))
    checked = context(
        ssl_truststore_certificates=authority.certificate_pem, ssl_endpoint_identification_algorithm="HTTPS"
    )
    with pytest.raises(TlsFailed, match="is for another name"):
        asyncio.run(handshake(server, checked))


@pytest.mark.parametrize("form", ["pem", "inline", "pkcs12", "two files"])
def test_our_own_certificate_is_shown_in_whatever_form_it_is_given(
    authority: DevelopmentAuthority, tmp_path: Path, form: str
) -> None:
    held = authority.issue("client")
    both, certificate = held.write(tmp_path, "client")
    (tmp_path / "client.p12").write_bytes(as_pkcs12(held, authority, SECRET))
    (tmp_path / "key.pem").write_text(held.key_pem)
    settings: dict[str, object] = {
        "pem": {"ssl.keystore.location": str(both)},
        "inline": {"ssl.keystore.certificate.chain": held.certificate_pem, "ssl.keystore.key": held.key_pem},
        "pkcs12": {"ssl.keystore.location": str(tmp_path / "client.p12"), "ssl.keystore.password": SECRET},
        "two files": {
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(tmp_path / "key.pem"),
        },
    }[form]
    ours = context(**{"ssl.truststore.certificates": authority.certificate_pem, **settings})
    server = authority.issue("broker", hosts=["localhost"])
    asyncio.run(handshake(server, ours, authority=authority.certificate_pem))
    with pytest.raises(KafkaError):
        without = context(ssl_truststore_certificates=authority.certificate_pem)
        asyncio.run(handshake(server, without, authority=authority.certificate_pem))


def test_a_trust_store_may_be_pkcs12(authority: DevelopmentAuthority, tmp_path: Path) -> None:
    trusted = pkcs12.serialize_key_and_certificates(
        None, None, None, load_pem_x509_certificates(authority.certificate_pem.encode()),
        BestAvailableEncryption(SECRET.encode()),
    )
    (tmp_path / "trust.p12").write_bytes(trusted)
    trusting = context(ssl_truststore_location=str(tmp_path / "trust.p12"), ssl_truststore_password=SECRET)
    asyncio.run(handshake(authority.issue("broker", hosts=["localhost"]), trusting))


def test_every_mistake_names_its_setting_and_no_secret(authority: DevelopmentAuthority, tmp_path: Path) -> None:
    held, other = authority.issue("client"), authority.issue("other")
    both, certificate = held.write(tmp_path, "client")
    (tmp_path / "client.p12").write_bytes(as_pkcs12(held, authority, SECRET))
    (tmp_path / "empty.pem").write_text("nothing here")
    (tmp_path / "noise").write_bytes(bytes(range(128, 256)))
    (tmp_path / "old.jks").write_bytes(b"\xfe\xed\xfe\xed" + bytes(20))
    key = load_pem_private_key(held.key_pem.encode(), None)
    from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat

    sealed = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(SECRET.encode())).decode()
    for settings, words in [
        ({"ssl.ca.location": str(tmp_path / "absent")}, "ssl.truststore.location: cannot read"),
        ({"ssl.ca.location": str(tmp_path / "empty.pem")}, "ssl.truststore.location: .* holds no certificate"),
        ({"ssl.ca.location": str(tmp_path / "old.jks")}, "is a Java key store"),
        ({"ssl.ca.location": str(tmp_path / "noise")}, "ssl.truststore.location: .* holds no certificate"),
        ({"ssl.ca.location": str(tmp_path)}, "ssl.truststore.location: the directory .* holds no certificate under"),
        ({"ssl.ca.location": "a\0b"}, "ssl.truststore.location: .* is no path"),
        ({"ssl.ca.location": "/dev/zero"}, "ssl.truststore.location: /dev/zero is larger than"),
        ({"ssl.keystore.location": "/dev/zero"}, "ssl.keystore.location: /dev/zero is larger than"),
        ({"ssl.ca.pem": "\u0444"}, "ssl.truststore.certificates: is not a certificate"),
        ({"ssl.ca.pem": "nonsense"}, "ssl.truststore.certificates: is not a certificate"),
        ({"ssl.keystore.location": str(tmp_path / "absent")}, "ssl.keystore.location: cannot read"),
        ({"ssl.keystore.location": str(certificate)}, "no private key"),
        ({"ssl.keystore.location": str(tmp_path / "client.p12")}, "ssl.keystore.password: is missing"),
        ({"ssl.keystore.location": str(tmp_path / "client.p12"), "ssl.keystore.password": "x" + SECRET},
         "ssl.keystore.password: is wrong"),
        ({"ssl.keystore.certificate.chain": held.certificate_pem}, "ssl.keystore.key: .* is missing"),
        ({"ssl.keystore.certificate.chain": held.certificate_pem, "ssl.keystore.key": other.key_pem},
         "does not belong to the certificate"),
        ({"ssl.keystore.certificate.chain": held.certificate_pem, "ssl.keystore.key": held.key_pem[:80]},
         r"ssl.keystore.key: the key or the certificate cannot be read(?! \(None)"),
        ({"ssl.keystore.certificate.chain": held.certificate_pem, "ssl.keystore.key": sealed},
         "ssl.key.password: is missing"),
        ({"ssl.keystore.certificate.chain": held.certificate_pem, "ssl.keystore.key": sealed,
          "ssl.key.password": "x" + SECRET}, "ssl.key.password: is wrong"),
        ({"ssl.keystore.location": str(both), "ssl.keystore.type": "BCFKS"}, "type BCFKS cannot be read"),
        ({"ssl.cipher.suites": "NO_SUCH"}, "ssl.cipher.suites"),
        ({"ssl.enabled.protocols": "TLSv1.3", "ssl.protocol": "TLSv1.2"}, "ssl.protocol"),
    ]:
        with pytest.raises(ConfigError, match=words) as raised:
            context(**settings)
        assert SECRET not in str(raised.value)
    chain = {"ssl.keystore.certificate.chain": held.certificate_pem, "ssl.keystore.key": sealed}
    opened = context(**{**chain, "ssl.key.password": SECRET})
    assert opened.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_nothing_older_than_tls_1_2_is_spoken() -> None:
    assert context().minimum_version == ssl.TLSVersion.TLSv1_2
    with pytest.raises(ConfigError, match=r"ssl\.enabled\.protocols"):
        context(ssl_enabled_protocols="TLSv1.1")
    one = context(ssl_enabled_protocols="TLSv1.3")
    assert one.minimum_version == one.maximum_version == ssl.TLSVersion.TLSv1_3


def test_without_tls_there_is_no_context() -> None:
    assert client_context(ADMIN.parse({"bootstrap.servers": "b:1"})) is None


def test_settings_of_tls_that_nothing_uses_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert client_context(ADMIN.parse({"bootstrap.servers": "b:1"})) is None
    assert caplog.text == ""
    assert client_context(ADMIN.parse({"bootstrap.servers": "b:1", "ssl.ca.location": "authority.pem"})) is None
    assert "is not used, nothing is encrypted: security.protocol=PLAINTEXT" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ssl.ca.location": "/absent.pem"}, "ssl.ca.location: cannot read /absent.pem"),
        ({"ssl.truststore.location": "/absent.pem"}, "ssl.truststore.location: cannot read /absent.pem"),
        ({"ssl.ca.pem": "nonsense"}, "ssl.ca.pem: is not a certificate"),
        ({"ssl.certificate.location": "/absent.pem"}, "ssl.certificate.location: cannot read /absent.pem"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanisms": "GSSAPI"}, "sasl.mechanisms: is GSSAPI"),
    ],
)
def test_a_mistake_is_told_by_the_name_that_was_given(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        semel.Admin({"bootstrap.servers": "b:1", "security.protocol": "SSL", **settings})
