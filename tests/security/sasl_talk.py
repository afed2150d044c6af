"""A client that says what a test wants it to say, while it should authenticate; it notes what it is told."""

from __future__ import annotations

import base64
import secrets
import struct
from typing import Any

from semel.machines.security.scram import DIGESTS, ScramClient
from semel.wire.messages.features import ApiVersionsRequest
from semel.wire.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.broker.raw import Raw

CLOSED = "closed"
VERSIONS = ApiVersionsRequest(client_software_name="talk", client_software_version="1")


class Talk(Raw):
    """One connection to a listener with SASL."""

    def tell(self, message: Any, version: int | None = None) -> Any:
        """What is answered to a request: CLOSED, or the answer."""
        try:
            return self.ask(message, version)
        except ConnectionError:
            return CLOSED

    def handshake(self, mechanism: str, version: int = 1) -> Any:
        answer = self.tell(SaslHandshakeRequest(mechanism=mechanism), version)
        return answer if answer == CLOSED else (answer.error_code, sorted(answer.mechanisms))

    def authenticate(self, data: bytes, version: int = 2) -> Any:
        return self.tell(SaslAuthenticateRequest(auth_bytes=data), version)

    def told(self, data: bytes, version: int = 2) -> Any:
        """Code and text of the answer to a message."""
        answer = self.authenticate(data, version)
        return answer if answer == CLOSED else (answer.error_code, answer.error_message)

    def raw_message(self, data: bytes) -> Any:
        """What is answered to a message without a header, as old clients send it."""
        try:
            self.socket.sendall(struct.pack(">i", len(data)) + data)
            return self.receive_frame()
        except ConnectionError:
            return CLOSED

    def plain(self, user: str, password: str, version: int = 2) -> Any:
        self.handshake("PLAIN")
        return self.authenticate(plain(user, password), version)

    def scram(self, mechanism: str, user: str, password: str, *, is_token: bool = False) -> Any:
        """The whole exchange; the last answer, or the first one that is a refusal."""
        self.handshake(mechanism)
        client = ScramClient(mechanism, user, password, nonce(), is_token=is_token)
        answer = self.authenticate(client.first())
        if answer == CLOSED or answer.error_code:
            return answer
        answer = self.authenticate(client.prove(bytes(answer.auth_bytes)))
        if answer != CLOSED and not answer.error_code:
            client.check(bytes(answer.auth_bytes))
        return answer


def plain(user: str, password: str, authorization_id: str = "") -> bytes:
    return f"{authorization_id}\0{user}\0{password}".encode()


def nonce() -> str:
    return secrets.token_urlsafe(18)


def a_proof(mechanism: str) -> str:
    """A proof of the right length that proves nothing."""
    size = {"sha256": 32, "sha512": 64}[DIGESTS[mechanism]]
    return base64.b64encode(bytes(size)).decode()
