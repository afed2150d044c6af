"""Client credentials traded for a token at an OAuth 2.0 token endpoint (RFC 6749, section 4.4).

Guarantees:

- Only https:// and http:// are asked. A configuration cannot make this read a file (CVE-2025-27817).
- With the environment variable SEMEL_ALLOWED_TOKEN_URLS only the addresses listed there are asked, whatever a
  configuration says: for services that take the settings of clients from others.
- A redirect is not followed: it would carry the secret to another address.
"""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request

from semel.config import ConfigError
from semel.security.bounded_http import ask

_TIMEOUT_S = 10.0
_LARGEST_ANSWER = 1 << 20
_SETTING = "sasl.oauthbearer.token.endpoint.url"
#: As Kafka's system property org.apache.kafka.sasl.oauthbearer.allowed.urls: addresses with commas between them.
ALLOWED_URLS = "SEMEL_ALLOWED_TOKEN_URLS"


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
            answer = json.loads(ask(request, most_bytes=_LARGEST_ANSWER, timeout_s=_TIMEOUT_S))
        except urllib.error.HTTPError as error:
            raise PermissionError(f"the token endpoint {self._url} answered {error.code} {error.reason}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ConnectionError(f"the token endpoint {self._url} gave no token: {error}") from None
        token = answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(token, str) or not token:
            raise PermissionError(f"the token endpoint {self._url} answered without an access_token")
        lifetime = answer.get("expires_in")
        return token, time.time() + float(lifetime) if isinstance(lifetime, (int, float)) else None
