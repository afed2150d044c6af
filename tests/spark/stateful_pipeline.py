"""A driver with five queries that keep state, all in one process, so that one kill hits all of them; run by the tests.

`--die-at KIND=STEP:BATCH,...` names a step for each query. A query that reaches its step waits there. When all of them
wait, the process kills itself with SIGKILL: each query dies exactly where it was told to. With `--state FILE` the state
of each query is written there at the end, as JSON, read by Spark's own reader of state.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql.functions import expr
from pyspark.sql.streaming import StatefulProcessor

from semel.spark import Step, start
from tests.spark.session import open_session
from tests.spark.stage import TOO_SLOW_TO_START

KINDS = ("update", "complete", "distinct", "join", "transform")

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Summing(StatefulProcessor):  # type: ignore[misc]
    """The sum of the values of each key."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timer_values: Any) -> Any:
        total = self.total.get()[0] if self.total.exists() else 0
        total += sum(int(frame["number"].sum()) for frame in rows)
        self.total.update((total,))
        yield pd.DataFrame({"key": [key[0]], "value": [str(total)]})

    def close(self) -> None:
        """Nothing is held."""


class Queries:
    """The queries by kind: each a function from the payments to the rows for its topic, and its output mode."""

    def __init__(self, spark: Any, bootstrap: str, per_batch: str) -> None:
        self._spark, self._bootstrap, self._per_batch = spark, bootstrap, per_batch

    def read(self, topic: str = "payments") -> Any:
        return (
            self._spark.readStream.format("semel")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self._per_batch)
            .load()
            .selectExpr("string(key) as key", "int(string(value)) as number", "timestamp")
        )

    def count(self) -> Any:
        return self.read().groupBy("key").count().selectExpr("key", "string(count) as value")

    def distinct(self) -> Any:
        timed = self.read().withWatermark("timestamp", "1 day")
        return timed.dropDuplicatesWithinWatermark(["number"]).selectExpr("key", "string(number) as value")

    def join(self) -> Any:
        left = self.read().withWatermark("timestamp", "1 day").alias("l")
        right = self.read("refunds").withWatermark("timestamp", "1 day").alias("r")
        near = "r.timestamp between l.timestamp - interval 1 day and l.timestamp + interval 1 day"
        joined = left.join(right, expr(f"l.number = r.number and {near}"))
        return joined.selectExpr("l.key as key", "string(l.number) as value")

    def summed(self) -> Any:
        return (
            self.read()
            .groupBy("key")
            .transformWithStateInPandas(
                Summing(), outputStructType="key string, value string", outputMode="Update", timeMode="None"
            )
        )

    def kinds(self) -> dict[str, tuple[Callable[[], Any], str]]:
        return {
            "update": (self.count, "update"),
            "complete": (self.count, "complete"),
            "distinct": (self.distinct, "append"),
            "join": (self.join, "append"),
            "transform": (self.summed, "update"),
        }


def state_of(spark: Any, kind: str, checkpoint: str) -> list[Any]:
    """The state of a query, by Spark's own reader of checkpoints."""
    reader = spark.read.format("statestore")
    if kind == "transform":
        rows = reader.option("stateVarName", "total").load(checkpoint)
        return sorted([row.key[0], row.value[0]] for row in rows.collect())
    if kind == "join":
        sides = []
        for side in ("left", "right"):
            rows = reader.option("joinSide", side).load(checkpoint).collect()
            sides.append(sorted(row.key[0] for row in rows))
        return sides
    rows = reader.load(checkpoint).collect()
    if kind == "distinct":
        return sorted(row.key[0] for row in rows)
    return sorted([row.key[0], row.value[0]] for row in rows)


def main() -> None:
    """Run all queries until the input is used up, or die where told to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--per-batch", default="70")
    parser.add_argument("--die-at", default="")
    parser.add_argument("--state", type=Path)
    options = parser.parse_args()
    die_at = dict(part.split("=") for part in options.die_at.split(",") if part)
    waiting: set[str] = set()
    all_wait = threading.Condition()
    begun = {kind: threading.Event() for kind in KINDS}

    def observer_of(kind: str) -> Callable[[Step, int], None]:
        def observe(step: Step, batch_id: int) -> None:
            print(f"{kind} batch {batch_id}: {step.name}", flush=True)
            begun[kind].set()
            if die_at.get(kind) == f"{step.name}:{batch_id}":
                with all_wait:
                    waiting.add(kind)
                    all_wait.notify_all()
                    all_wait.wait_for(lambda: waiting == die_at.keys())
                os.kill(os.getpid(), signal.SIGKILL)

        return observe

    spark = open_session()
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # five queries share two cores
    queries = Queries(spark, options.bootstrap, options.per_batch)

    def run(kind: str) -> Any:
        frame, mode = queries.kinds()[kind]
        return start(
            frame(), bootstrap_servers=options.bootstrap, transactional_id=kind, topic=f"out-{kind}",
            checkpoint=options.folder / kind, output_mode=mode, trigger={"availableNow": True},
            observer=observer_of(kind),
        )  # fmt: skip

    def keep_running(kind: str) -> None:
        while True:
            try:
                run(kind).awaitTermination()
                break
            except Exception as error:
                if TOO_SLOW_TO_START not in str(error):
                    print(f"{kind}: {error}", file=sys.stderr, flush=True)
                    os._exit(3)  # the others may wait for this one
        begun[kind].set()

    # One after the other: Spark gives a source ten seconds to start, and six at once are too many for two cores.
    threads = [threading.Thread(target=keep_running, args=(kind,)) for kind in KINDS]
    for kind, thread in zip(KINDS, threads, strict=True):
        thread.start()
        begun[kind].wait()
    for thread in threads:
        thread.join()
    if options.state is not None:
        found = {kind: state_of(spark, kind, str(options.folder / kind)) for kind in KINDS}
        options.state.write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
