"""A driver that counts payments by account, in a process of its own so that it can be killed; run by the tests."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from pyspark.sql import SparkSession

from semel.spark import Step, register, start


def main() -> None:
    """Count until the input is used up, or die where told to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--mode", required=True)
    parser.add_argument("--die-at", default="")
    options = parser.parse_args()
    die_step, _, die_batch = options.die_at.partition(":")

    def observer(step: Step, batch_id: int) -> None:
        print(f"batch {batch_id}: {step.name}", flush=True)
        if step.name == die_step and str(batch_id) == die_batch:
            os.kill(os.getpid(), signal.SIGKILL)

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    payments = (
        spark.readStream.format("semel")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", "payments")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "70")
        .load()
    )
    counts = payments.groupBy("key").count().selectExpr("key", "cast(count as string) as value")
    query = start(
        counts, bootstrap_servers=options.bootstrap, transactional_id="counts", topic="ledger",
        checkpoint=options.checkpoint, output_mode=options.mode, trigger={"availableNow": True}, observer=observer,
    )  # fmt: skip
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
