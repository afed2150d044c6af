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
    from .claims import RowRefused
    from .marker import MarkerConflict
    from .pipeline import register, start
    from .preflight import NotExactlyOnce, PipelineMistake
    from .sink import DriverFenced, Step

__all__ = [
    "DriverFenced",
    "MarkerConflict",
    "NotExactlyOnce",
    "PipelineMistake",
    "RowRefused",
    "Step",
    "register",
    "start",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        try:
            from . import pipeline
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.partition(".")[0] in ("pyspark", "py4j", "pyarrow", "pandas"):
                raise ModuleNotFoundError(
                    f"semel.spark needs {error.name}: pip install 'semel[spark]'", name=error.name
                ) from error
            raise
        return getattr(pipeline, name)
    raise AttributeError(f"module 'semel.spark' has no attribute {name!r}")
