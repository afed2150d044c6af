"""The demo: a Spark pipeline whose driver is killed twice still writes every payment exactly once.

It starts a broker, writes payments, and runs the pipeline three times. The driver is killed with SIGKILL before EndTxn
in the first run, and after it in the second. At the end confluent-kafka reads the ledger, and the entries are counted.
The last line is computed from the counts; if it says NO, the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import confluent_kafka

import semel

PAYMENTS = 3000
PARTITIONS = 3


def produce_payments(bootstrap: str, count: int) -> None:
    """Write the input with Semel's transactional producer, a hundred payments per transaction."""
    settings = {"bootstrap.servers": bootstrap, "transactional.id": "payments-till"}
    with semel.Producer(settings) as producer:
        producer.init_transactions()
        for first in range(0, count, 100):
            with producer.transaction():
                for number in range(first, min(first + 100, count)):
                    account = f"account-{number % 17}"
                    payment = {"id": number, "account": account, "cents": 100 + number % 900}
                    producer.send("payments", json.dumps(payment).encode(), key=account.encode())


def read_all(bootstrap: str, topic: str, isolation: str) -> list[dict[str, Any]]:
    """All records of a topic under an isolation level, read by librdkafka."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "proof",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
    found, ended = [], 0
    while ended < len(partitions):
        message = consumer.poll(30)
        if message is None:
            raise SystemExit(f"no answer from {topic} in 30 s: a transaction may hang (semel txn doctor)")
        if message.error() is None:
            found.append(json.loads(message.value()))
        elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ended += 1
        else:
            raise SystemExit(f"reading {topic}: {message.error()}")
    consumer.close()
    return found


def run_pipeline(bootstrap: str, checkpoint: Path, per_batch: int, die_at: str = "") -> int:
    """Run the pipeline in its own process group, so that no JVM is left when the driver is killed."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("payments_pipeline.py")),
        "--bootstrap",
        bootstrap,
        "--checkpoint",
        str(checkpoint),
        "--per-batch",
        str(per_batch),
        "--die-at",
        die_at,
    ]
    driver = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        errors = driver.communicate(timeout=300)[1]
    finally:
        try:
            os.killpg(driver.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # the process group has already ended
    if driver.returncode not in (0, -signal.SIGKILL):
        print(errors[-6000:], file=sys.stderr)
        raise SystemExit(f"the pipeline failed with exit code {driver.returncode}")
    return driver.returncode


def judge(bootstrap: str) -> bool:
    """Compare the payments with what a read_committed reader gets, and print the counts."""
    payments = read_all(bootstrap, "payments", "read_committed")
    entries = read_all(bootstrap, "ledger", "read_committed")
    wanted = Counter((row["id"], row["account"], row["cents"] * 2) for row in payments)
    seen = Counter((row["id"], row["account"], row["cents"]) for row in entries)
    uncommitted = read_all(bootstrap, "ledger", "read_uncommitted")
    missing, extra = wanted - seen, seen - wanted
    due, booked = (sum(cents for _, _, cents in rows.elements()) for rows in (wanted, seen))
    careless = sum(row["cents"] for row in uncommitted)
    print(f"  input payments, committed        {wanted.total():>8}   {due:>12} cents due")
    print(f"  ledger entries, read_committed   {seen.total():>8}   {booked:>12} cents booked")
    print(f"  ledger entries, read_uncommitted {len(uncommitted):>8}   {careless:>12} cents: a careless count")
    print(f"  lost {missing.total()}, repeated or foreign {extra.total()}")
    return not missing and not extra and wanted.total() > 0


def main() -> int:
    """Run all steps and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--payments", type=int, default=PAYMENTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="semel-demo-") as folder, semel.Broker(Path(folder) / "data") as broker:
        bootstrap, checkpoint = broker.bootstrap_servers, Path(folder) / "checkpoint"
        per_batch = max(1, options.payments // 6)
        print(f"1. broker on {bootstrap}; {options.payments} payments go in, a hundred to a transaction")
        with semel.Admin({"bootstrap.servers": bootstrap}) as admin:
            admin.create_topics([semel.NewTopic(name, PARTITIONS) for name in ("payments", "ledger")])
        produce_payments(bootstrap, options.payments)
        print("2. the pipeline starts; its driver dies between produce and EndTxn")
        died = run_pipeline(bootstrap, checkpoint, per_batch, "PRODUCED:1") == -signal.SIGKILL
        print("3. it starts again; its driver dies right after EndTxn, before Spark hears of it")
        died = run_pipeline(bootstrap, checkpoint, per_batch, "COMMITTED:2") == -signal.SIGKILL and died
        print("4. it starts again and runs to the end")
        run_pipeline(bootstrap, checkpoint, per_batch)
        print("5. the proof, read by confluent-kafka")
        exact = judge(bootstrap)
        if not died:
            print("  a driver was to be killed and was not: this run proves nothing")
        print(f"exactly once: {'yes' if exact and died else 'NO'}")
        return 0 if exact and died else 1


if __name__ == "__main__":
    sys.exit(main())
