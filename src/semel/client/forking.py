"""A client belongs to the process that created it: a forked process has neither its thread nor its connections.

Guarantees: in a forked process every call that needs them is refused with the reason, before it takes a lock that a
thread of the parent process may have held. The check costs one attribute lookup, so it is made for every record.
"""

from __future__ import annotations

import os
import weakref
from typing import NoReturn

from semel.errors import ErrorCode, Misuse


class Origin:
    """The process that created a client. `lost` is true in every process forked from it."""

    __slots__ = ("__weakref__", "lost")

    def __init__(self) -> None:
        self.lost = False
        _made_here.add(self)

    def check(self, what: str) -> None:
        """Raise `Misuse` in a forked process."""
        if self.lost:
            raise self.refusal(what)

    def refusal(self, what: str) -> Misuse:
        why = f"{what} was made before a fork, and only the process that made it can use it: make one in this process"
        return Misuse(ErrorCode.INVALID_REQUEST, why)


class OfOneProcess:
    """The base of what cannot be copied or pickled, such as a client that a function for Spark refers to."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        kind = type(self).__name__
        raise TypeError(
            f"a {kind} is of use in its own process only, and cannot be copied or pickled: make one where it is used"
        )


_made_here: weakref.WeakSet[Origin] = weakref.WeakSet()


def _lose_all() -> None:
    for origin in list(_made_here):
        origin.lost = True


if hasattr(os, "register_at_fork"):  # missing on platforms without fork
    os.register_at_fork(after_in_child=_lose_all)
