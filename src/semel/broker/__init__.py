"""The broker: sockets on one side, partitions and coordinators on the other.

`server` owns the process, `dispatch` turns frames into calls of `handlers`, `topics` owns topics and their logs,
`coordinators` runs the transaction and group machines on their internal topics. `Broker` runs all of it inside another
program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.broker.embedded import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> object:
    if name == "Broker":
        from semel.broker.embedded import Broker

        return Broker
    raise AttributeError(name)
