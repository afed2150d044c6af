"""An exactly-once pipeline on Spark: one micro-batch, one Kafka transaction.

`start` runs a streaming DataFrame into a topic so that each micro-batch becomes visible whole, with its progress, or
not at all. `register` makes `spark.readStream.format("semel")` read committed records as Arrow columns.

Follow one micro-batch: `sink` runs it, `marker` decides whether it was done before, `routing` gives each output
partition one task, `claims` makes sure of that, `writer` encodes and produces in the tasks, `transaction` talks to the
coordinators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pipeline import DriverFenced, NotExactlyOnce, register, start
    from .sink import Step

__all__ = ["DriverFenced", "NotExactlyOnce", "Step", "register", "start"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import pipeline

        return getattr(pipeline, name)
    raise AttributeError(f"module 'semel.spark' has no attribute {name!r}")
