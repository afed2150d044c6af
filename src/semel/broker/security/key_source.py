"""Where the keys come from by which bearer tokens are signed: a file, or an issuer's address (JWKS).

Guarantees:

- Nothing is read or asked on the event loop. What is fetched is bounded in size and time. Redirects are not followed.
- Keys are fetched again after `sasl.oauthbearer.jwks.endpoint.refresh.ms`, and when a token names a key that is not
  known. Clients that make up names of keys cause at most one fetch in `...retry.backoff.max.ms`.
- If the issuer cannot be reached, or answers nonsense, the keys stay as they were, and the log says so.
- The address is the operator's. A token cannot name another one: `jku`, `x5u` and `jwk` in it are not looked at.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from semel.config import ConfigError
from semel.security.bounded_http import ask
from semel.security.signing_keys import KeysError, SigningKey, read_keys

if TYPE_CHECKING:
    from semel.broker.security.doors import MechanismSettings
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)

JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"
#: For the whole of a fetch, and for its answer.
FETCH_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 1 << 20

Keys = tuple[SigningKey, ...]


class KeySource(Protocol):
    """Keys, as they are now."""

    def start(self) -> None:
        """The broker listens."""

    async def keys(self) -> Keys:
        """The keys. Empty as long as there were none."""

    async def keys_again(self) -> Keys:
        """The keys, after one was not found among them."""


def key_source(broker: BrokerServer, settings: MechanismSettings) -> KeySource:
    """The source that the settings name."""
    url = settings[JWKS_URL]
    parts = urlsplit(url)
    if parts.scheme == "file":
        return KeyFile(broker, Path(unquote(parts.path)))
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise ConfigError(f"{JWKS_URL}={url}: must begin with https://, http:// or file://")
    if parts.scheme == "http":
        logger.warning("%s: whoever is between here and %s can put in keys of their own; use https", JWKS_URL, url)
    return KeyEndpoint(broker, url, settings)


class KeyFile:
    """Keys in a file, read again when it has changed."""

    def __init__(self, broker: BrokerServer, path: Path) -> None:
        self._broker = broker
        self._path = path
        self._seen = self._look()
        try:
            self._keys = read_keys(_read_file(path))
        except (OSError, KeysError) as error:
            raise ConfigError(f"{JWKS_URL}: cannot use {path}: {error}") from None

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def start(self) -> None:
        """Nothing to do: the file was read."""

    async def keys(self) -> Keys:
        """The keys of the file."""
        seen = self._look()
        if seen is not None and seen != self._seen:
            self._seen = seen
            await self._broker.beside(self._read_again)
        return self._keys

    def _read_again(self) -> None:
        try:
            self._keys = read_keys(_read_file(self._path))
        except (OSError, KeysError) as error:
            logger.error("%s: the keys stay as they were; %s: %s", JWKS_URL, self._path, error)

    async def keys_again(self) -> Keys:
        """The same: `keys` has looked at the file."""
        return self._keys


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_ANSWER_BYTES + 1)
    if len(data) > MAX_ANSWER_BYTES:
        raise KeysError(f"it is larger than {MAX_ANSWER_BYTES} bytes")
    return data


class KeyEndpoint:
    """Keys at an issuer's address."""

    def __init__(self, broker: BrokerServer, url: str, settings: MechanismSettings) -> None:
        self._broker = broker
        self._url = url
        self._refresh_s: float = settings["sasl.oauthbearer.jwks.endpoint.refresh.ms"] / 1000
        self._backoff_s: float = settings["sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"] / 1000
        self._backoff_max_s: float = settings["sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"] / 1000
        self._keys: Keys = ()
        self._failures = 0
        self._began_s = 0.0
        #: When keys are fetched again.
        self._due_s = 0.0
        self._fetching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Fetch the keys before the first client needs them."""
        self._fetch_soon()

    async def keys(self) -> Keys:
        """The keys, fetched anew if that is due."""
        if self._broker.loop.time() >= self._due_s:
            self._fetch_soon()
        # Keys that are due may be worth nothing any more: an issuer may have taken one back.
        if self._fetching is not None:
            await asyncio.shield(self._fetching)
        return self._keys

    async def keys_again(self) -> Keys:
        """The keys, fetched anew unless that was done a moment ago."""
        if self._broker.loop.time() - self._began_s >= self._backoff_max_s:
            self._fetch_soon()
        if self._fetching is not None:
            await asyncio.shield(self._fetching)
        return self._keys

    def _fetch_soon(self) -> None:
        if self._fetching is None:
            self._began_s = self._broker.loop.time()
            self._fetching = self._broker.spawn(self._fetch())

    async def _fetch(self) -> None:
        pause_s = self._refresh_s
        try:
            data = await _on_a_thread(partial(fetch, self._url))
            self._keys = read_keys(data)
            self._failures = 0
        except (OSError, KeysError) as error:
            self._failures += 1
            pause_s = min(self._backoff_s * 2 ** min(self._failures - 1, 30), self._backoff_max_s, self._refresh_s)
            kept = f"{len(self._keys)} keys are kept" if self._keys else "no token can be checked"
            logger.error("%s: no keys from %s, %s: %s", JWKS_URL, self._url, kept, error)
        finally:
            self._due_s = self._broker.loop.time() + pause_s
            self._fetching = None


def fetch(url: str) -> bytes:
    """What is at this address. It blocks."""
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    try:
        return ask(request, most_bytes=MAX_ANSWER_BYTES, timeout_s=FETCH_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        raise ConnectionError(f"it answered {error.code} {error.reason}") from None


async def _on_a_thread(work: Callable[[], bytes]) -> bytes:
    """Do this on a thread that a stop of the broker does not wait for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def finish(data: bytes | None, error: BaseException | None) -> None:
        if done.done():
            return
        if data is not None:
            done.set_result(data)
        elif error is not None:
            done.set_exception(error)

    def run() -> None:
        data, failure = None, None
        try:
            data = work()
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(finish, data, failure)
        except RuntimeError:
            pass  # the loop is closed, and nobody waits

    threading.Thread(target=run, name="semel-keys", daemon=True).start()
    return await done
