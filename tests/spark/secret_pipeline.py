"""A driver on a cluster of its own, with secrets to keep and files that Spark brings; run by the tests."""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

from semel.spark import register, start


def main() -> None:
    """Read the plan from standard input: it has secrets. Print what a user may look at."""
    plan = json.load(sys.stdin)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", "file:" + plan["events"])
        .config("spark.eventLog.compress", "false")
        .config("spark.files", plan["files"])
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.executor.extraJavaOptions", plan["java_options"])
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("DEBUG")
    register(spark)
    reader = spark.readStream.format("semel").option("subscribe", "payments").option("startingOffsets", "earliest")
    payments = reader.options(**{f"kafka.{name}": value for name, value in plan["source"].items()}).load()
    payments.explain(True)
    payments.explain("formatted")
    rows = payments.selectExpr("key", "value", "'ledger' as topic")  # tasks look the topic up
    query = start(
        rows, bootstrap_servers=plan["bootstrap"], transactional_id="secretive", marker_topic="payments",
        checkpoint=plan["checkpoint"], trigger={"availableNow": True}, kafka=plan["sink"],
    )  # fmt: skip
    query.awaitTermination()
    query.explain(True)
    print(query.lastProgress, query.recentProgress, query.status, query, payments, rows)
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
