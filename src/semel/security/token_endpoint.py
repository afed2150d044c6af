"""Client credentials traded for a token at an OAuth 2.0 token endpoint (RFC 6749, section 4.4).

Guarantees:

- Only https:// and http:// are asked. A configuration cannot make this read a file (CVE-2025-27817).
- With the environment variable SEMEL_ALLOWED_TOKEN_URLS only the addresses listed there are asked, whatever a
  configuration says: for services that take the settings of clients from others.
- A redirect is not followed: it would carry the secret to another address.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from semel.config import ConfigError

_TIMEOUT_S = 10.0
_LARGEST_ANSWER = 1 << 20
_SETTING = "sasl.oauthbearer.token.endpoint.url"
#: As Kafka's system property org.apache.kafka.sasl.oauthbearer.allowed.urls: addresses with commas between them.
ALLOWED_URLS = "SEMEL_ALLOWED_TOKEN_URLS"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def without_redirects() -> urllib.request.OpenerDirector:
    """Asks an address, and no other."""
    return urllib.request.build_opener(_NoRedirects)


def read_bounded(response: Any, most_bytes: int, timeout_s: float) -> bytes:
    """An answer of at most so many bytes, that comes within this time."""
    until_s = time.monotonic() + timeout_s
    data = bytearray()
    while part := response.read1(65536):
        data += part
        if len(data) > most_bytes:
            raise ConnectionError(f"the answer has more than {most_bytes} bytes")
        if time.monotonic() > until_s:
            raise ConnectionError(f"the answer took more than {timeout_s:g} s")
    return bytes(data)


class TokenEndpoint:
    """A token provider that asks a token endpoint. It blocks: call it beside the event loop."""

    def __init__(self, url: str, client_id: str, client_secret: str, scope: str | None = None) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("https", "http"):
            raise ConfigError(f"{_SETTING}: must begin with https:// or http://")
        allowed = os.environ.get(ALLOWED_URLS)
        if allowed is not None and url not in {one.strip() for one in allowed.split(",")}:
            raise ConfigError(f"{_SETTING}={url}: is not one of those in {ALLOWED_URLS}")
        self._url = url
        self._client_id = client_id
        self._client_secret = client_secret
        self._scope = scope

    def __repr__(self) -> str:
        return f"<token endpoint {self._url} for {self._client_id}>"

    def __call__(self) -> tuple[str, float | None]:
        """A new token, and when it expires (seconds since 1970)."""
        form = {"grant_type": "client_credentials"}
        if self._scope:
            form["scope"] = self._scope
        pair = ":".join(urllib.parse.quote(part, safe="") for part in (self._client_id, self._client_secret))
        request = urllib.request.Request(
            self._url,
            urllib.parse.urlencode(form).encode(),
            {
                "Authorization": "Basic " + base64.b64encode(pair.encode()).decode(),
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": "application/json",
            },
        )
        try:
            with without_redirects().open(request, timeout=_TIMEOUT_S) as response:
                answer = json.loads(read_bounded(response, _LARGEST_ANSWER, _TIMEOUT_S))
        except urllib.error.HTTPError as error:
            raise PermissionError(f"the token endpoint {self._url} answered {error.code} {error.reason}") from None
        except (OSError, ValueError, http.client.HTTPException, RecursionError) as error:
            raise ConnectionError(f"the token endpoint {self._url} gave no token: {error}") from None
        token = answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(token, str) or not token:
            raise PermissionError(f"the token endpoint {self._url} answered without an access_token")
        lifetime = answer.get("expires_in")
        return token, time.time() + float(lifetime) if isinstance(lifetime, (int, float)) else None
