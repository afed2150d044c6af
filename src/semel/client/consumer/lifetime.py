"""Whether a consumer is open. Its parts share this, so that none of them has to know the consumer."""

from __future__ import annotations

from semel.errors import ErrorCode, error_for


class Lifetime:
    """Open until `closed` is set."""

    __slots__ = ("closed",)

    def __init__(self) -> None:
        self.closed = False

    def check_open(self) -> None:
        if self.closed:
            raise error_for(ErrorCode.INVALID_REQUEST, "the consumer is closed")
