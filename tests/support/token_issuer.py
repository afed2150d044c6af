"""A tiny identity provider on 127.0.0.1, with TLS where it is given a certificate: it signs JWTs, publishes its keys
(JWKS), and trades client credentials for tokens."""

from __future__ import annotations

import base64
import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
NAMES_OF_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
HASHES: dict[str, hashes.HashAlgorithm] = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int, size: int | None = None) -> str:
    return encoded(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


class SigningKey:
    """A private key for one algorithm."""

    def __init__(self, kid: str, algorithm: str = "RS256", *, bits: int = 2048) -> None:
        self.kid, self.algorithm = kid, algorithm
        self.private: Any
        if algorithm in CURVES:
            self.private = ec.generate_private_key(CURVES[algorithm])
        else:
            self.private = rsa.generate_private_key(65537, bits)

    def jwk(self, **more: object) -> dict[str, Any]:
        """The public half, as a JWKS lists it."""
        numbers = self.private.public_key().public_numbers()
        found: dict[str, Any]
        if self.algorithm in CURVES:
            size = (CURVES[self.algorithm].key_size + 7) // 8
            found = {
                "kty": "EC", "crv": NAMES_OF_CURVES[self.algorithm], "x": _number(numbers.x, size),
                "y": _number(numbers.y, size),
            }
        else:
            found = {"kty": "RSA", "n": _number(numbers.n), "e": _number(numbers.e)}
        return {**found, "kid": self.kid, "use": "sig", "alg": self.algorithm, **more}

    def signature(self, data: bytes, algorithm: str | None = None) -> bytes:
        algorithm = algorithm or self.algorithm
        digest = HASHES[algorithm[2:]]
        if algorithm.startswith("RS"):
            return bytes(self.private.sign(data, padding.PKCS1v15(), digest))
        if algorithm.startswith("PS"):
            pad = padding.PSS(padding.MGF1(digest), digest.digest_size)
            return bytes(self.private.sign(data, pad, digest))
        size = (CURVES[algorithm].key_size + 7) // 8
        r, s = decode_dss_signature(self.private.sign(data, ec.ECDSA(digest)))
        return r.to_bytes(size, "big") + s.to_bytes(size, "big")


def claims(subject: str = "alice", **more: object) -> dict[str, object]:
    """Claims that Kafka takes; None takes one out."""
    now = int(time.time())
    found = {"sub": subject, "iat": now, "exp": now + 3600, "scope": ["all"], **more}
    return {name: value for name, value in found.items() if value is not None}


def token(key: SigningKey, content: dict[str, object] | str | None = None, **header: object) -> str:
    """A signed token; a header of None is left out, and a `content` that is text is signed as it is."""
    content = claims() if content is None else content
    fields = {"alg": key.algorithm, "kid": key.kid, **header}
    return sign(key, json.dumps({name: value for name, value in fields.items() if value is not None}), content)


def sign(key: SigningKey, header: str, content: dict[str, object] | str) -> str:
    body = content if isinstance(content, str) else json.dumps(content)
    start = f"{encoded(header.encode())}.{encoded(body.encode())}"
    return f"{start}.{encoded(key.signature(start.encode()))}"


class TokenIssuer:
    """The identity provider: `jwks_url`, and `token_url` for client credentials (any id, the secret `s3cret`)."""

    def __init__(
        self, keys: list[SigningKey] | None = None, *, lifetime_s: float = 3600, certificate: Path | None = None
    ) -> None:
        self.keys = keys if keys is not None else [SigningKey("first")]
        self.lifetime_s = lifetime_s
        #: What was asked, one path for each request.
        self.asked: list[str] = []
        #: Set to give another answer to a request for the keys: status and body.
        self.answer: Callable[[], tuple[int, bytes]] = lambda: (200, self.jwks())
        #: Headers of every answer.
        self.headers: dict[str, str] = {}
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                self._send(*issuer.answer())

            def do_POST(self) -> None:
                issuer.asked.append(self.path)
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                kind, _, pair = self.headers.get("Authorization", "").partition(" ")
                name, _, secret = base64.b64decode(pair).decode().partition(":") if kind == "Basic" else ("", "", "")
                if secret != "s3cret" or form.get("grant_type") != ["client_credentials"]:
                    self._send(401, b'{"error":"invalid_client"}')
                    return
                expires = int(time.time() + issuer.lifetime_s)
                content = claims(name, exp=expires, scope=form.get("scope", ["all"])[0])
                answer = {"access_token": token(issuer.keys[0], content), "expires_in": int(issuer.lifetime_s)}
                self._send(200, json.dumps({**answer, "token_type": "Bearer"}).encode())

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                for name, value in issuer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # The handshake is for the thread of the connection.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{self._server.server_port}"
        self.jwks_url, self.token_url = f"{self.url}/keys", f"{self.url}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def jwks(self) -> bytes:
        return json.dumps({"keys": [key.jwk() for key in self.keys]}).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> TokenIssuer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
