"""A driver that copies `payments` to `ledger` until its input is used up; run by the tests, which kill it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from pyspark.errors import StreamingQueryException

from semel.spark import Step, start
from tests.spark.session import java_options, open_session
from tests.spark.stage import TOO_SLOW_TO_START


def main() -> None:
    """Copy, and say each step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--per-batch", default="100")
    parser.add_argument("--source", default="payments")
    parser.add_argument("--target", default="ledger")
    parser.add_argument("--transactional-id", default="copy")
    parser.add_argument("--forever", action="store_true", help="wait for more when the input is used up")
    options = parser.parse_args()
    trigger: dict[str, Any] = {"processingTime": "500 milliseconds"} if options.forever else {"availableNow": True}
    begun: list[int] = []

    def observer(step: Step, batch_id: int) -> None:
        begun.append(batch_id)
        print(f"batch {batch_id}: {step.name}", flush=True)

    spark = open_session(
        options.master,
        spark_executor_extraJavaOptions=java_options(),
        # Executors are killed more often than a master likes.
        spark_deploy_maxExecutorRetries="-1",
    )
    payments = (
        spark.readStream.format("semel")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", options.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.per_batch)
        .load()
    )
    while True:
        query = start(
            payments.select("key", "value"), bootstrap_servers=options.bootstrap, topic=options.target,
            transactional_id=options.transactional_id, checkpoint=options.checkpoint, trigger=trigger,
            attempts=20, observer=observer,
        )  # fmt: skip
        try:
            query.awaitTermination()
            break
        except StreamingQueryException as error:
            if begun or TOO_SLOW_TO_START not in str(error):
                print(error, file=sys.stderr)
                sys.exit(3)
    spark.stop()


if __name__ == "__main__":
    main()
