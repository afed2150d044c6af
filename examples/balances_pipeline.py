"""The pipeline of the demo: payments become balances and a list of suspicious payments, in one transaction.

It keeps a state, the balance of each account, and writes in update mode to a compacted topic. Run it again after a
crash: it goes on after the last committed micro-batch. `--die-at STEP:BATCH` kills this process with SIGKILL when the
micro-batch reaches that step.

With `--plain-sink TOPIC` Spark's own Kafka sink copies the payments beside it, in the same process, so that the same
kill hits both.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import semel
from semel.spark import Step, register, start

#: A payment of so many cents is suspicious.
SUSPICIOUS_CENTS = 950


def book(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Add the payments of an account to its balance. One row for the new balance, one for each suspicious payment."""
    cents, payments = state.get if state.exists else (0, 0)
    rows = []
    for frame in frames:
        for payment in frame.itertuples(index=False):
            cents, payments = cents + int(payment.cents), payments + 1
            if payment.cents >= SUSPICIOUS_CENTS:
                rows.append(("fraud", key[0], json.dumps({"id": int(payment.id), "cents": int(payment.cents)})))
    state.update((cents, payments))
    rows.append(("balances", key[0], json.dumps({"cents": cents, "payments": payments})))
    yield pd.DataFrame(rows, columns=["kind", "account", "body"])


def rows_for(kind: str) -> Any:
    """The part of a micro-batch that goes to a topic."""

    def part(rows: DataFrame) -> DataFrame:
        return rows.where(col("kind") == kind).select(col("account").alias("key"), col("body").alias("value"))

    return part


def main() -> None:
    """Run the pipeline until its input is used up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--per-batch", default="500")
    parser.add_argument("--die-at", default="", help="STEP:BATCH, for example PRODUCED:1")
    parser.add_argument("--plain-sink", default="", metavar="TOPIC", help="copy payments by Spark's own sink, too")
    parser.add_argument("--jars", default="", help="the jars of Spark's Kafka connector")
    parser.add_argument("--java-options", default="", help="more options of the JVM, for example of its class archive")
    options = parser.parse_args()
    die_step, _, die_batch = options.die_at.partition(":")
    plain, begun = Path(options.checkpoint + "-plain"), threading.Event()

    def observer(step: Step, batch_id: int) -> None:
        print(f"  batch {batch_id}: {step.value}", flush=True)
        if batch_id >= int(die_batch or 0) - 1:
            begun.set()  # the copy may start: not earlier, because it is to be at work when this process is killed
        if step.name == die_step and str(batch_id) == die_batch:
            if options.plain_sink and not wait_for_half_a_batch(options.bootstrap, options.plain_sink, plain):
                print("  Spark's own sink was not in the middle of a micro-batch", flush=True)
            print(f"  batch {batch_id}: kill -9 now", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("semel-balances")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {options.java_options}")
    )
    if options.jars:
        builder = builder.config("spark.jars", options.jars)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    rows = balances(read(spark, options))

    def run() -> Any:
        return start(
            rows,
            bootstrap_servers=options.bootstrap,
            transactional_id="balances-pipeline",
            outputs={"balances": rows_for("balances"), "fraud": rows_for("fraud")},
            output_mode="update",
            checkpoint=options.checkpoint,
            trigger={"availableNow": True},
            observer=observer,
        )

    query = start_patiently(run, begun)
    if options.plain_sink:
        start_plain_copy(spark, options, plain).awaitTermination()
    query.awaitTermination()
    spark.stop()


def start_patiently(run: Callable[[], Any], begun: threading.Event) -> Any:
    """Start the query. Spark gives its source ten seconds, which a busy machine may not have: then start it again."""
    while True:
        query = run()
        try:
            while not begun.wait(0.1):
                if query.awaitTermination(0.1):
                    return query  # there was nothing to do
            return query
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
            print("  this machine is busy: Spark's source did not start in time, and is started again", flush=True)


def read(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    """The payments as they come."""
    return (
        spark.readStream.format("semel")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", "payments")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.per_batch)
        .load()
    )


def balances(payments: DataFrame) -> DataFrame:
    """Balances and suspicious payments, from a state that is kept for each account."""
    parsed = payments.select(from_json(col("value").cast("string"), "id long, account string, cents long").alias("p"))
    return (
        parsed.select("p.*")
        .groupBy("account")
        .applyInPandasWithState(
            book,
            "kind string, account string, body string",
            "cents long, payments long",
            "update",
            GroupStateTimeout.NoTimeout,
        )
    )


def start_plain_copy(spark: SparkSession, options: argparse.Namespace, checkpoint: Path) -> Any:
    """The same payments through Spark's own source and sink: at least once.

    Each row takes five milliseconds, as if something were computed, and its micro-batches are half as large: so that it
    is still at work when the driver is killed.
    """
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", "payments")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", max(1, int(options.per_batch) // 2))
        .load()
        .selectExpr("key", "value", "reflect('java.lang.Thread', 'sleep', 5L) as pause")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("topic", options.plain_sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def wait_for_half_a_batch(bootstrap: str, topic: str, checkpoint: Path) -> bool:
    """Wait until Spark's own sink has written rows of a micro-batch that Spark has not noted as done.

    Returns whether it was found so. Looks for half a minute at most: the copy may have ended.
    """
    deadline = time.monotonic() + 30
    with semel.Admin({"bootstrap.servers": bootstrap}) as admin:
        at_commit, done = records_in(admin, topic), finished(checkpoint)
        while time.monotonic() < deadline:
            if finished(checkpoint) != done:
                at_commit, done = records_in(admin, topic), finished(checkpoint)
            elif records_in(admin, topic) > at_commit and finished(checkpoint) == done:
                return True
            time.sleep(0.01)
    return False


def records_in(admin: semel.Admin, topic: str) -> int:
    """How many records a topic was given so far."""
    partitions = admin.describe_topics([topic])[topic].partitions
    ends = admin.list_offsets({(topic, number): -1 for number in range(len(partitions))})
    return sum(end.offset for end in ends.values())


def finished(checkpoint: Path) -> int:
    """How many micro-batches Spark has noted as done."""
    folder = checkpoint / "commits"
    return sum(path.name.isdigit() for path in folder.iterdir()) if folder.exists() else 0


if __name__ == "__main__":
    main()
