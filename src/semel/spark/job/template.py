"""What `semel pipeline init` writes: a pipeline.toml in which every key is explained, and a transform."""

from __future__ import annotations

from pathlib import Path

FILE, MODULE = "pipeline.toml", "transform.py"

_FILE = """\
# A pipeline: from topics through Spark to topics, each record exactly once.
#   semel pipeline check pipeline.toml     looks for mistakes, and writes nothing
#   semel pipeline run pipeline.toml       runs it; SIGTERM stops it after the current micro-batch
# ${NAME} is taken from the environment, ${NAME:-text} has a default.

# The pipeline's name on the broker. A second pipeline with this name takes over from the first.
transactional_id = "ledger"

# Where Spark keeps the state of the query: a directory (seen from this file) or an address such as s3a://...
checkpoint = "checkpoint"

# output_mode = "append"            # append, update or complete, as in Spark
# compression = "zstd"              # none, gzip, snappy, lz4 or zstd
# transaction_timeout_ms = 600000   # how long one micro-batch may take
# attempts = 3                      # how often a micro-batch is tried before the pipeline fails
# metrics_port = 9464               # http://127.0.0.1:9464/metrics, for Prometheus

# Settings of the Kafka clients, by Kafka's names.
[kafka]
bootstrap.servers = "127.0.0.1:9092"
# security.protocol = "SASL_SSL"
# ssl.truststore.location = "/etc/ssl/kafka.pem"
# sasl.mechanism = "SCRAM-SHA-512"
# sasl.username = "ledger"
# sasl.password = "${KAFKA_PASSWORD}"

# What is read. The name is the source's view in SQL. The options are those of Spark's Kafka source.
[source.payments]
subscribe = "payments"
startingOffsets = "earliest"
maxOffsetsPerTrigger = 100000

# One of: sql = "select ...", sql_file = "ledger.sql", function = "module:function" (see transform.py).
# Rows need a column value; key, headers and partition are optional.
[transform]
function = "transform:ledger"

# Where the rows go. For several outputs, each gets its part of the rows by its own sql = "select ... from result".
[output.ledger]
topic = "ledger"

# Rows of the source that cannot be processed go to a topic of their own, in the same transaction. when is SQL over the
# source's columns: true, or the error as text. In its place, a function may return such a condition.
# [dead_letters]
# topic = "payments.dead"
# when = "value is null"

# Without a trigger, one micro-batch follows the other.
[trigger]
available_now = true                # read what is there, and end
# processing_time = "10 seconds"    # run for ever

# Settings of Spark: sql.shuffle.partitions is spark.sql.shuffle.partitions.
[spark]
master = "local[*]"
# sql.shuffle.partitions = 8
"""

_MODULE = '''\
"""What happens to the rows on their way: an ordinary function from a streaming DataFrame to a streaming DataFrame."""

from pyspark.sql import DataFrame


def ledger(payments: DataFrame) -> DataFrame:
    """One entry of the ledger for each payment. It is called once, when the pipeline starts."""
    return payments.selectExpr("key", "upper(string(value)) as value")
'''


def write_template(directory: Path) -> list[Path]:
    """Write both files. Raises `FileExistsError`, and writes nothing, if one of them is there."""
    wanted = {directory / FILE: _FILE, directory / MODULE: _MODULE}
    for path in wanted:
        if path.exists():
            raise FileExistsError(path)
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in wanted.items():
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    return list(wanted)
