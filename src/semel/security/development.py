"""Certificates for trying things out: an authority, a broker's certificate and a client's.

They last a month by default, and their private keys lie beside them. They are not for production: use the certificates
of your own authority there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from semel.config import ConfigError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key, in PEM form."""

    certificate_pem: str
    key_pem: str

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write NAME.pem (certificate and key together) and NAME-certificate.pem; only their owner can read the key."""
        both, public = folder / f"{name}.pem", folder / f"{name}-certificate.pem"
        both.touch(0o600)
        both.write_text(self.certificate_pem + self.key_pem)
        public.write_text(self.certificate_pem)
        return both, public


class DevelopmentAuthority:
    """An authority that signs certificates for development.

    >>> authority = DevelopmentAuthority()
    >>> authority.issue("broker", hosts=["localhost", "127.0.0.1"]).certificate_pem.startswith("-----BEGIN CERTIFICATE")
    True
    """

    def __init__(self, name: str = "Semel development authority") -> None:
        try:
            from cryptography import x509  # noqa: F401
        except ImportError:
            why = "making certificates needs the package `cryptography`: pip install 'semel[security]'"
            raise ConfigError(why) from None
        self._key = _new_key()
        self._name = _name(name)
        self._certificate = self._sign(self._name, self._key, timedelta(days=30), is_authority=True)

    @property
    def certificate_pem(self) -> str:
        """The authority's own certificate: what the other side has to trust."""
        return _pem(self._certificate)

    def issue(
        self,
        name: str,
        *,
        hosts: Iterable[str] = (),
        lifetime: timedelta = timedelta(days=30),
        begins: datetime | None = None,
    ) -> Certificate:
        """A certificate for a name, and for the hosts a broker is reached by."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        key = _new_key()
        certificate = self._sign(_name(name), key, lifetime, hosts=tuple(hosts), begins=begins)
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        return Certificate(_pem(certificate), key_pem)

    def _sign(
        self,
        subject: x509.Name,
        key: EllipticCurvePrivateKey,
        lifetime: timedelta,
        *,
        hosts: tuple[str, ...] = (),
        is_authority: bool = False,
        begins: datetime | None = None,
    ) -> x509.Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        # A clock that is a little behind must not find the certificate to be one of the future.
        begins = begins or datetime.now(UTC) - timedelta(minutes=5)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(begins + lifetime)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if is_authority:
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()
