"""Salts and nonces that a seed decides. Outside of a simulation only the operating system makes them."""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import semel.broker.security.plain  # noqa: F401 - it draws a key when it is imported: not in the middle of a run


@contextmanager
def drawn_secrets(chance: Random) -> Iterator[None]:
    """Draw what is secret elsewhere from `chance`, so that a seed has the same bytes in every run."""
    before = secrets.token_bytes, secrets.token_urlsafe

    def token_bytes(nbytes: int | None = None) -> bytes:
        return chance.randbytes(32 if nbytes is None else nbytes)

    def token_urlsafe(nbytes: int | None = None) -> str:
        return urlsafe_b64encode(token_bytes(nbytes)).rstrip(b"=").decode()

    secrets.token_bytes, secrets.token_urlsafe = token_bytes, token_urlsafe
    try:
        yield
    finally:
        secrets.token_bytes, secrets.token_urlsafe = before
