"""Peers of TLS listeners: well-behaved ones that speak frames, and sockets that stop wherever a test wants them to."""

from __future__ import annotations

import hashlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

from semel.broker.embedded import Broker
from tests.broker.raw import Raw
from tests.security.conftest import Locks
from tests.security.sasl_talk import Talk


def trusting(locks: Locks, **options: Any) -> ssl.SSLContext:
    """A client's context that trusts the broker's authority; `certificate` is a file to show."""
    context = ssl.create_default_context(cafile=str(locks.authority_file))
    if options.get("certificate"):
        context.load_cert_chain(str(options["certificate"]))
    if options.get("version"):
        context.minimum_version = context.maximum_version = options["version"]
    if options.get("ciphers"):
        context.set_ciphers(options["ciphers"])
    return context


class TlsRaw(Raw):
    """Frames over TLS."""

    socket: ssl.SSLSocket

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        super().__init__(address)
        try:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        except BaseException:
            self.socket.close()
            raise


class TlsTalk(TlsRaw, Talk):
    """The same, for a listener with SASL."""


def fingerprint(address: str, context: ssl.SSLContext) -> str:
    """Of the certificate that a new connection is shown."""
    with TlsRaw(address, context) as raw:
        shown = raw.socket.getpeercert(binary_form=True)
    assert shown is not None
    return hashlib.sha256(shown).hexdigest()


def fingerprint_of(certificate_pem: str) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate_pem)).hexdigest()


def dial(address: str, timeout_s: float = 10) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=timeout_s)


def client_hello() -> bytes:
    """The first flight of a handshake."""
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def ended(peer: socket.socket) -> bool:
    """Whether the broker has ended the connection; waits for it up to the socket's timeout."""
    try:
        while peer.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def on_loop(broker: Broker, ask: Callable[[], Any]) -> Any:
    """What is true on the broker's own thread."""

    async def answer() -> Any:
        return ask()

    return broker.call(answer())


class BioPeer:
    """A TLS client whose every byte is in the test's hands: TLS is here, the socket is a plain one."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        self.socket = dial(address)
        #: Whether the end of the connection was TLS's own, and not a cut.
        self.was_told_the_end = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def __enter__(self) -> BioPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def shake_hands(self) -> BioPeer:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.socket.sendall(self._outgoing.read())
                self._receive()
            else:
                self.socket.sendall(self._outgoing.read())
                return self

    def sealed(self, data: bytes) -> bytes:
        """These bytes as they would go over the wire. Nothing is sent."""
        view = memoryview(data)
        while view:
            view = view[self.tls.write(view) :]
        return self._outgoing.read()

    def say_the_end(self) -> None:
        """Send TLS's own end. What the broker still has to say can be read."""
        try:
            self.tls.unwrap()
        except ssl.SSLWantReadError:
            pass
        self.socket.sendall(self._outgoing.read())

    def read_all(self) -> bytes:
        """Everything until the broker's end."""
        found = bytearray()
        while True:
            try:
                part = self.tls.read(1 << 20)
                if not part:
                    raise ssl.SSLZeroReturnError
                found += part
            except ssl.SSLWantReadError:
                self._receive()
            except ssl.SSLZeroReturnError:
                self.was_told_the_end = True
                return bytes(found)
            except ssl.SSLEOFError:
                return bytes(found)

    def _receive(self) -> None:
        part = self.socket.recv(1 << 16)
        if part:
            self._incoming.write(part)
        else:
            self._incoming.write_eof()
