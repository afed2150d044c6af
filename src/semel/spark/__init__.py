"""An exactly-once pipeline on Spark: one micro-batch is one Kafka transaction.

`start` writes a streaming DataFrame to a topic. Each micro-batch becomes visible whole, with its progress, or not at
all. `register` makes `spark.readStream.format("semel")` read committed records as Arrow columns.

To follow a micro-batch, begin with `sink`. It asks `machines/pipeline/batch_marker` whether the batch was committed
before. `routing` gives each output partition to one task, and `claims` makes sure of that. `writer` encodes and
produces in the tasks. `transaction` talks to the coordinators.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.machines.pipeline.batch_marker import MarkerConflict as MarkerConflict
    from semel.machines.pipeline.claims import RowRefused as RowRefused
    from semel.machines.pipeline.driver_transaction import DriverFenced as DriverFenced

    from .adoption import Adoption as Adoption
    from .adoption import adopt as adopt
    from .batch_transaction import Step as Step
    from .dead_letters import DeadLetters as DeadLetters
    from .hopeless import BatchFailed as BatchFailed
    from .hopeless import SourceFailed as SourceFailed
    from .load import Load as Load
    from .load import write as write
    from .pipeline import register as register
    from .pipeline import start as start
    from .preflight import NotExactlyOnce as NotExactlyOnce
    from .preflight import PipelineMistake as PipelineMistake
    from .range_reader import DataLost as DataLost
    from .user_transaction import Transaction as Transaction
    from .user_transaction import transaction as transaction

#: What this package offers, and the module it is in. Loaded when asked for: `import semel` must not need PySpark.
_HOMES = {
    "Adoption": "semel.spark.adoption",
    "BatchFailed": "semel.spark.hopeless",
    "DataLost": "semel.spark.range_reader",
    "DeadLetters": "semel.spark.dead_letters",
    "DriverFenced": "semel.machines.pipeline.driver_transaction",
    "Load": "semel.spark.load",
    "MarkerConflict": "semel.machines.pipeline.batch_marker",
    "NotExactlyOnce": "semel.spark.preflight",
    "PipelineMistake": "semel.spark.preflight",
    "RowRefused": "semel.machines.pipeline.claims",
    "SourceFailed": "semel.spark.hopeless",
    "Step": "semel.spark.batch_transaction",
    "Transaction": "semel.spark.user_transaction",
    "adopt": "semel.spark.adoption",
    "register": "semel.spark.pipeline",
    "start": "semel.spark.pipeline",
    "transaction": "semel.spark.user_transaction",
    "write": "semel.spark.load",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'semel.spark' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("pyspark", "py4j", "pyarrow", "pandas"):
            raise ModuleNotFoundError(
                f"semel.spark needs {package}: pip install 'semel[spark]'", name=error.name
            ) from error
        raise
