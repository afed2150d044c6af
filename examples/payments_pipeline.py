"""The pipeline of the demo: reads payments and writes one ledger entry for each, exactly once.

Run it again after a crash: it goes on after the last committed micro-batch. `--die-at STEP:BATCH` kills this process
with SIGKILL when the micro-batch reaches that step.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json, struct, to_json

from semel.spark import Step, register, start

STARTS = 5


def main() -> None:
    """Read payments, double each amount, write the ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--master", default="local[2]", help="Spark's master, for example local-cluster[2,1,1024]")
    parser.add_argument("--source", default="payments")
    parser.add_argument("--target", default="ledger")
    parser.add_argument("--transactional-id", default="ledger-pipeline")
    parser.add_argument("--per-batch", default="500")
    parser.add_argument("--die-at", default="", help="STEP:BATCH, for example PRODUCED:1")
    options = parser.parse_args()
    die_step, _, die_batch = options.die_at.partition(":")

    def observer(step: Step, batch_id: int) -> None:
        print(f"  batch {batch_id}: {step.value}", flush=True)
        if step.name == die_step and str(batch_id) == die_batch:
            print(f"  batch {batch_id}: kill -9 now", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(options.master)
        .appName("semel-payments")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    payments = (
        spark.readStream.format("semel")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", options.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.per_batch)
        .load()
    )
    parsed = payments.select(
        col("key"), from_json(col("value").cast("string"), "id long, account string, cents long").alias("payment")
    )
    ledger = parsed.select(
        col("key"),
        to_json(
            struct(
                col("payment.id").alias("id"),
                col("payment.account").alias("account"),
                (col("payment.cents") * 2).alias("cents"),
            )
        ).alias("value"),
    )

    def run() -> Any:
        return start(
            ledger,
            bootstrap_servers=options.bootstrap,
            transactional_id=options.transactional_id,
            topic=options.target,
            checkpoint=options.checkpoint,
            trigger={"availableNow": True},
            observer=observer,
        )

    run_patiently(run)
    spark.stop()


def run_patiently(run: Callable[[], Any]) -> None:
    """Run the query to its end. Spark gives its source ten seconds to start, which a busy machine may not have."""
    for starts_left in reversed(range(STARTS)):
        try:
            run().awaitTermination()
            return
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error) or not starts_left:
                raise
            print("  this machine is busy: Spark's source did not start in time, and is started again", flush=True)


if __name__ == "__main__":
    main()
