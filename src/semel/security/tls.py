"""TLS contexts from Kafka's settings.

Guarantees:

- A client checks the broker's certificate, against the system's trust store unless another is given, and the name it
  connects to. Both can be turned off only by a setting that says so.
- Nothing older than TLS 1.2 is spoken.
- A wrong file, password or pair of key and certificate is refused when the context is made, with the setting's name.
  No error text repeats a password or a key.
- Cipher suites that are not listed are not used, where a list is given.
- A private key that came as text or from a PKCS12 file is not written to disk: OpenSSL reads it from memory (on Linux;
  elsewhere from a file that only its owner can read, for that moment).
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

from semel.config import ConfigError

_log = logging.getLogger(__name__)

#: Whoever gives one of these to a client thinks that it speaks TLS.
_SAY_THAT_TLS_IS_MEANT = (
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.keystore.location",
    "ssl.keystore.certificate.chain",
)
#: OpenSSL finds a certificate in a directory by the hash of its owner's name.
_HASHED_NAME = re.compile(r"[0-9a-f]{8}\.\d+")
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_PKCS12_TYPES = ("PKCS12", "PFX")
_PKCS12_SUFFIXES = (".p12", ".pfx", ".pkcs12")
_NEEDS_CRYPTOGRAPHY = "needs the package `cryptography`: pip install 'semel[security]'"
#: A file of keys and certificates is smaller. A system's whole trust store has a quarter of a megabyte.
MAX_FILE_BYTES = 4 * 1024 * 1024
_JKS_HEAD = b"\xfe\xed\xfe\xed"
#: The suites of TLS 1.3 that OpenSSL uses unless it is told otherwise.
_TLS_1_3_SUITES = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
#: One block of a PEM text. Java is content with spaces, or nothing, where OpenSSL wants the ends of lines.
_PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_PEM_LINE_CHARACTERS = 64
_END_OF_CERTIFICATE = b"-----END CERTIFICATE-----"


class SecuritySettings(Protocol):
    """Settings by name."""

    def __getitem__(self, name: str, /) -> Any: ...


def client_context(settings: SecuritySettings) -> ssl.SSLContext | None:
    """The context for a client's connections; None where they are not encrypted."""
    if settings["security.protocol"] not in ("SSL", "SASL_SSL"):
        if given := [name for name in _SAY_THAT_TLS_IS_MEANT if settings[name]]:
            _log.warning(
                "%s: is not used, nothing is encrypted: security.protocol=%s; set it to SSL or SASL_SSL",
                ", ".join(given), settings["security.protocol"],
            )  # fmt: skip
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_protocols(context, settings)
    if settings["ssl.endpoint.identification.algorithm"].lower() != "https":
        context.check_hostname = False
    if not settings["enable.ssl.certificate.verification"]:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if not _load_trust(context, settings):
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    _load_key(context, settings)
    return context


def server_context(settings: SecuritySettings, *, asks_clients: str) -> tuple[ssl.SSLContext, bytes]:
    """The context for the connections of a listener, and our own certificate in DER form.

    `asks_clients` is what `ssl.client.auth` can be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_protocols(context, settings)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    # One ticket is enough to come back with; the default is two, for each connection.
    context.num_tickets = 1
    own = _load_key(context, settings)
    if own is None:
        raise ConfigError(
            "ssl.keystore.location: a listener with TLS needs a certificate and its private key: a PEM or PKCS12 file "
            "here, or PEM text in ssl.keystore.certificate.chain and ssl.keystore.key"
        )
    is_trusting = _load_trust(context, settings)
    if asks_clients != "none":
        if not is_trusting:
            raise ConfigError(
                f"ssl.truststore.location: ssl.client.auth={asks_clients} needs it, to say whose certificates are taken"
            )
        # As in Java, whoever is in the trust store is trusted, also without those who signed its certificate.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.verify_mode = ssl.CERT_REQUIRED if asks_clients == "required" else ssl.CERT_OPTIONAL
    return context, own


def files_of(settings: SecuritySettings) -> list[str]:
    """The files that keys and certificates are read from."""
    names = ("ssl.keystore.location", "ssl.key.location", "ssl.truststore.location")
    return [settings[name] for name in names if settings[name]]


def _set_protocols(context: ssl.SSLContext, settings: SecuritySettings) -> None:
    versions = sorted(_VERSIONS[name] for name in settings["ssl.enabled.protocols"])
    newest = _VERSIONS.get(settings["ssl.protocol"], versions[-1])
    versions = [version for version in versions if version <= newest]
    if not versions:
        raise ConfigError("ssl.protocol: is older than every version in ssl.enabled.protocols")
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if settings["ssl.cipher.suites"]:
        versions = _set_suites(context, settings["ssl.cipher.suites"], versions)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


def _set_suites(
    context: ssl.SSLContext, names: tuple[str, ...], versions: list[ssl.TLSVersion]
) -> list[ssl.TLSVersion]:
    """Use no other suites than these. Returns the versions of TLS that have any of them."""
    newer = [name for name in names if name.startswith(("TLS_AES_", "TLS_CHACHA20_POLY1305_SHA"))]
    older = [name for name in names if name not in newer]
    if newer and ssl.TLSVersion.TLSv1_3 in versions:
        if hasattr(context, "set_ciphersuites"):  # Python 3.15
            context.set_ciphersuites(":".join(newer))
        elif not set(_TLS_1_3_SUITES) <= set(newer):
            raise ConfigError(
                f"ssl.cipher.suites: this Python cannot choose among the suites of TLS 1.3; name all of "
                f"{', '.join(_TLS_1_3_SUITES)}, or none of them to speak TLS 1.2 only"
            )
    if older:
        try:
            context.set_ciphers(":".join(_openssl_name(name) for name in older))
        except ssl.SSLError:
            raise ConfigError(f"ssl.cipher.suites: OpenSSL knows none of {', '.join(older)}") from None
    has_suites = {ssl.TLSVersion.TLSv1_2: bool(older), ssl.TLSVersion.TLSv1_3: bool(newer)}
    left = [version for version in versions if has_suites[version]]
    if not left:
        raise ConfigError("ssl.cipher.suites: none of them is for a version of TLS in ssl.enabled.protocols")
    return left


def _openssl_name(name: str) -> str:
    """The name that OpenSSL has for a cipher suite.

    >>> _openssl_name("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
    'ECDHE-RSA-AES128-GCM-SHA256'
    """
    if not name.startswith("TLS_"):
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "").replace("_", "-")
    cipher = cipher.replace("POLY1305-SHA256", "POLY1305")
    return cipher if exchange == "RSA" else f"{exchange.replace('_', '-')}-{cipher}"


# The certificates we trust


def _load_trust(context: ssl.SSLContext, settings: SecuritySettings) -> bool:
    """Load the certificates to trust; False where none are named."""
    text, location = settings["ssl.truststore.certificates"], settings["ssl.truststore.location"]
    if text and location:
        raise ConfigError("ssl.truststore.certificates and ssl.truststore.location: give one of them")
    if text:
        try:
            context.load_verify_locations(cadata=_as_lines(text))
        except (ssl.SSLError, ValueError, TypeError):
            raise ConfigError("ssl.truststore.certificates: is not a certificate in PEM form") from None
        return True
    if not location:
        return False
    if os.path.isdir(location):
        try:
            names = os.listdir(location)
        except OSError as error:
            raise ConfigError(f"ssl.truststore.location: cannot read {location}: {error.strerror or error}") from None
        if not any(_HASHED_NAME.fullmatch(name) for name in names):
            raise ConfigError(
                f"ssl.truststore.location: the directory {location} holds no certificate under the name that OpenSSL "
                f"looks for; run `openssl rehash {location}`, or name a file"
            )
        context.load_verify_locations(capath=location)
        return True
    data = _read("ssl.truststore.location", location)
    if _is_pkcs12(settings["ssl.truststore.type"], location, data):
        _, certificates = _open_pkcs12("ssl.truststore", location, data, settings["ssl.truststore.password"])
        data = b"".join(certificates)
    try:
        context.load_verify_locations(cadata=data.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError, TypeError):
        raise ConfigError(f"ssl.truststore.location: {location} holds no certificate in PEM form") from None
    return True


# Our own key


def _load_key(context: ssl.SSLContext, settings: SecuritySettings) -> bytes | None:
    """Load our key and certificates; returns our own certificate in DER form, None where none is named."""
    location, chain, key = (
        settings[name] for name in ("ssl.keystore.location", "ssl.keystore.certificate.chain", "ssl.keystore.key")
    )
    key_file = settings["ssl.key.location"]
    password = settings["ssl.key.password"]
    if not (location or chain):
        if key or key_file:
            raise ConfigError("ssl.keystore.certificate.chain: a private key is given, and its certificate is missing")
        return None
    if location and chain:
        raise ConfigError("ssl.keystore.location and ssl.keystore.certificate.chain: give one of them")
    if chain:
        if not key and not key_file:
            raise ConfigError("ssl.keystore.key: the private key of ssl.keystore.certificate.chain is missing")
        pem_key = _as_lines(key).encode() if key else _read("ssl.key.location", key_file)
        return _use_pem(context, "ssl.keystore.key", _as_lines(chain).encode(), pem_key, password)
    data = _read("ssl.keystore.location", location)
    if _is_pkcs12(settings["ssl.keystore.type"], location, data):
        pem_key, certificates = _open_pkcs12("ssl.keystore", location, data, settings["ssl.keystore.password"])
        if not pem_key or not certificates:
            raise ConfigError(f"ssl.keystore.location: {location} holds no private key with its certificate")
        return _use_pem(context, "ssl.keystore.location", b"".join(certificates), pem_key, None)
    pem_key = _as_lines(key).encode() if key else _read("ssl.key.location", key_file) if key_file else data
    password = password or settings["ssl.keystore.password"]
    return _use_pem(context, "ssl.keystore.location", data, pem_key, password)


def _as_lines(pem: str) -> str:
    """PEM text that came in one line, as in a properties file, in the lines that OpenSSL wants."""

    def block(found: re.Match[str]) -> str:
        kind, content = found[1], found[2].replace("\\n", "\n")
        if ":" not in content:  # an old encrypted key has headers, and is left as it is
            packed = "".join(content.split())
            lines = [packed[at : at + _PEM_LINE_CHARACTERS] for at in range(0, len(packed), _PEM_LINE_CHARACTERS)]
            content = "\n" + "\n".join(lines) + "\n"
        return f"-----BEGIN {kind}-----{content}-----END {kind}-----\n"

    return _PEM_BLOCK.sub(block, pem)


def _use_pem(context: ssl.SSLContext, setting: str, chain: bytes, key: bytes, password: str | None) -> bytes:
    """Load a key with its certificates, which OpenSSL takes from files only. Returns the first certificate."""
    if b"PRIVATE KEY" not in key:
        raise ConfigError(f"{setting}: there is no private key in PEM form in it; see ssl.key.location")
    if b"BEGIN CERTIFICATE" not in chain:
        raise ConfigError(f"{setting}: there is no certificate in PEM form in it")
    asked = False

    def give_password() -> str:
        nonlocal asked
        asked = True
        return password or ""

    with _as_file(chain) as certificates, _as_file(key) as private:
        try:
            context.load_cert_chain(certificates, private, give_password)
        except ssl.SSLError as error:
            if "MISMATCH" in str(error):
                raise ConfigError(f"{setting}: the private key does not belong to the certificate") from None
            if asked:
                what = "is wrong" if password else "is missing"
                raise ConfigError(f"ssl.key.password: {what}; the private key is encrypted") from None
            why = f" ({error.reason})" if error.reason else ""
            raise ConfigError(f"{setting}: the key or the certificate cannot be read{why}") from None
    first = chain[chain.index(b"-----BEGIN CERTIFICATE") :].partition(_END_OF_CERTIFICATE)[0] + _END_OF_CERTIFICATE
    return ssl.PEM_cert_to_DER_cert(first.decode("ascii", "replace"))


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path under which these bytes can be read, while it is needed."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("semel-tls")
        try:
            os.write(number, data)
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)
        return
    with tempfile.NamedTemporaryFile(prefix="semel-tls-") as file:  # made with mode 0600
        file.write(data)
        file.flush()
        yield file.name


def _open_pkcs12(prefix: str, location: str, data: bytes, password: str | None) -> tuple[bytes, list[bytes]]:
    """The private key (as PEM, empty if there is none) and the certificates (as PEM, the key's own first)."""
    try:
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            pkcs12,
        )
    except ImportError:
        raise ConfigError(f"{prefix}.location: a PKCS12 file {_NEEDS_CRYPTOGRAPHY}") from None
    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        what = "is wrong" if password else "is missing"
        raise ConfigError(f"{prefix}.password: {what}, or {location} is not a PKCS12 file") from None
    key = b""
    if store.key is not None:
        key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    found = [store.cert, *store.additional_certs]
    return key, [one.certificate.public_bytes(Encoding.PEM) for one in found if one is not None]


def _is_pkcs12(kind: str | None, location: str, data: bytes) -> bool:
    if kind == "JKS" or data.startswith(_JKS_HEAD):
        _refuse_jks(location)
    if kind not in (None, "PEM", *_PKCS12_TYPES):
        raise ConfigError(f"a key store of type {kind} cannot be read: use PEM or PKCS12")
    if kind is not None:
        return kind in _PKCS12_TYPES
    return location.endswith(_PKCS12_SUFFIXES) or (data[:1] == b"\x30" and b"-----BEGIN" not in data)


def _refuse_jks(location: str) -> NoReturn:
    raise ConfigError(
        f"{location} is a Java key store (JKS), which cannot be read here; make a PKCS12 file of it: "
        f"keytool -importkeystore -srckeystore {location} -destkeystore store.p12 -deststoretype PKCS12"
    )


def _read(setting: str, location: str) -> bytes:
    try:
        with open(location, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {location}: {error.strerror or error}") from None
    except ValueError:  # a zero byte in it
        raise ConfigError(f"{setting}: {location!r} is no path") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{setting}: {location} is larger than {MAX_FILE_BYTES} bytes: it holds no keys")
    return data
