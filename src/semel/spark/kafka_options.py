"""The `kafka.*` options: the one way by which settings of the client reach the driver and the tasks.

Guarantees: a name that the client does not know is refused, and so is one that can have no effect here. Settings travel
to the tasks inside pickled functions and never as text of a plan or of Spark's configuration. Their `repr` shows no
secret, and `redaction_pattern` lets Spark hide what a user gives as an option of the source.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from semel.client.cluster.broker_connections import read_address
from semel.config import CONSUMER, PRODUCER, ConfigError
from semel.config.table import Values
from semel.records.compression import LEVEL_SETTINGS, codec_named

#: Settings that name a file.
_FILES = ("ssl.keystore.location", "ssl.key.location", "ssl.truststore.location")

#: Settings of both clients: how to connect, wait and authenticate.
_COMMON = frozenset(CONSUMER.rows) & frozenset(PRODUCER.rows)

_NO_JAVA = "there is no Java client here that could call them: use DataFrame functions"

#: Settings of a consumer that a source cannot follow. Spark's own source refuses the same.
_NOT_OF_A_SOURCE = {
    "auto.offset.reset": "Spark's checkpoint keeps the offsets",
    "enable.auto.commit": "Spark's checkpoint keeps the offsets",
    "key.deserializer": "the column key is binary, and DataFrame functions decode it",
    "value.deserializer": "the column value is binary, and DataFrame functions decode it",
    "interceptor.classes": _NO_JAVA,
}

#: Settings of a producer that this sink cannot follow, and what to do instead.
_NOT_OF_A_SINK = {
    "bootstrap.servers": "give it as the argument bootstrap_servers",
    "transactional.id": "give it as the argument transactional_id",
    "transaction.timeout.ms": "give it as the argument transaction_timeout_ms",
    "transaction.two.phase.commit.enable": "the pipeline commits by itself: leave it out",
    "retries": "requests are repeated until delivery.timeout.ms: set that, or leave it out",
    "max.in.flight.requests.per.connection": "up to five requests of a partition are sent at once: leave it out",
    "partitioner.ignore.keys": "give the rows a column 'partition' instead",
    "key.serializer": "the column key is text or binary, and is written as it is: leave it out",
    "value.serializer": "the column value is text or binary, and is written as it is: leave it out",
    "interceptor.classes": _NO_JAVA,
    "semel.exit.timeout.ms": "a task ends when all is acknowledged: leave it out",
}
#: Names of Kafka's Java client and of librdkafka that no client here knows, and what to do instead.
OF_OTHER_CLIENTS = {
    name: why
    for why, names in {
        "give the rows a column 'partition' instead": ("partitioner.class", "partitioner"),
        "rows without a key are spread over all partitions: leave it out": (
            "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms",
            "sticky.partitioning.linger.ms",
        ),
        "the figures are in lastProgress, and at metrics_port for Prometheus: leave it out": (
            "metric.reporters", "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
            "enable.metrics.push", "auto.include.jmx.reporter", "statistics.interval.ms",
        ),
        "every address of a name is tried: leave it out": ("client.dns.lookup",),
        "there is no Java client here that could use it: leave it out": (
            "security.providers", "ssl.engine.factory.class", "ssl.keymanager.algorithm", "ssl.provider",
            "ssl.secure.random.implementation", "ssl.trustmanager.algorithm",
        ),
        "its name in Kafka is linger.ms": ("queue.buffering.max.ms",),
        "its name in Kafka is compression.type": ("compression.codec",),
        "its name in Kafka is max.request.size": ("message.max.bytes",),
        "its name in Kafka is delivery.timeout.ms": ("message.timeout.ms",),
        "its name in Kafka is request.timeout.ms": ("socket.timeout.ms",),
        "its name in Kafka is metadata.max.age.ms": ("topic.metadata.refresh.interval.ms",),
        "set batch.size, in bytes": ("batch.num.messages",),
        "set buffer.memory, in bytes": ("queue.buffering.max.kbytes", "queue.buffering.max.messages"),
        "up to five requests of a partition are sent at once: leave it out": ("max.in.flight",),
        "requests are repeated until delivery.timeout.ms: set that, or leave it out": ("message.send.max.retries",),
    }.items()
    for name in names
}  # fmt: skip

# linger.ms may be given: it is the longest that a batch waits for more rows, and here no batch waits.

#: Settings that must have one value in a transaction.
_FIXED = {"acks": ("all", "-1"), "enable.idempotence": (True,)}

#: Times that may not be zero: each attempt would fail, and be repeated.
_NOT_ZERO = ("delivery.timeout.ms", "max.block.ms", "request.timeout.ms")

#: The size at which a task closes a batch, unless batch.size says otherwise.
DEFAULT_BATCH_BYTES = 900_000


@dataclass(frozen=True, slots=True)
class _Function:
    """A function among the settings. A task gets a new copy each time; the id tells that it is still the same."""

    call: Callable[..., Any] = field(compare=False, repr=False)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


class ClientSettings:
    """Settings of a client by Kafka's names. Can be pickled and be a key of a dictionary; shows no secret.

    >>> ClientSettings({"bootstrap.servers": "h:9092", "sasl.password": "pssst"})
    <client settings: bootstrap.servers=h:9092, sasl.password=[hidden]>
    """

    __slots__ = ("_items",)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        items = {name: _Function(value) if callable(value) else value for name, value in settings.items()}
        self._items = tuple(sorted(items.items()))

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Names and values, so that `dict(settings)` works."""
        for name, value in self._items:
            yield name, value.call if isinstance(value, _Function) else value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientSettings) and self._items == other._items

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        secret = secret_names()
        shown = (f"{name}={'[hidden]' if name in secret else value}" for name, value in self._items)
        return f"<client settings: {', '.join(shown)}>"

    def parse(self) -> Values:
        """The settings for a connection made in this process: files are looked for here."""
        return CONSUMER.parse({name: _file_here(name, value) for name, value in self})


def secret_names() -> frozenset[str]:
    """The settings that may not be shown, in all their spellings."""
    secret = {row.name for table in (CONSUMER, PRODUCER) for row in table if row.is_secret}
    return frozenset(secret | {alias for alias, name in CONSUMER.aliases.items() if name in secret})


def redaction_pattern() -> str:
    """For spark.sql.redaction.options.regex: the options of a source that `explain()` must not show."""
    return rf"(?i)^kafka\.({'|'.join(sorted(map(re.escape, secret_names())))})$"


def _file_here(name: str, value: Any) -> Any:
    """A file by its path, or by its bare name if Spark brought it here (spark.files, --files, SparkContext.addFile)."""
    if CONSUMER.aliases.get(name, name) not in _FILES or not isinstance(value, str) or os.path.exists(value):
        return value
    if os.path.basename(value) == value:
        for folder in _folders_of_spark_files():
            if os.path.exists(found := os.path.join(folder, value)):
                return found
    return value


def _folders_of_spark_files() -> tuple[str, ...]:
    """Where Spark puts files. A streaming source plans in a folder of its own below that one, which stays empty."""
    from pyspark import SparkContext, SparkFiles

    if SparkFiles._is_running_on_worker or SparkContext._active_spark_context is not None:
        root = SparkFiles.getRootDirectory()
        return root, os.path.dirname(root)
    return ()


def source_settings(kafka: Mapping[str, str], client_id: str) -> tuple[ClientSettings, Values]:
    """The settings of a source from its options without `kafka.`; `ConfigError` for what cannot be meant."""
    if "bootstrap.servers" not in kafka:
        raise ConfigError("bootstrap.servers is missing: name at least one broker as host:port")
    for refused, why in _NOT_OF_A_SOURCE.items():
        if refused in kafka:
            raise ConfigError(f"{refused} has no meaning here: {why}")
    _refuse_names_of_other_clients(kafka)
    kafka = {"client.id": client_id, "max.partition.fetch.bytes": str(4 << 20), **kafka}
    values = CONSUMER.parse(kafka)
    check_addresses(values)
    return ClientSettings(kafka), values


def _refuse_names_of_other_clients(kafka: Mapping[str, Any]) -> None:
    for name in kafka:
        if name in OF_OTHER_CLIENTS:
            raise ConfigError(f"{name}: {OF_OTHER_CLIENTS[name]}")


def check_addresses(values: Values) -> None:
    """Refuse bootstrap.servers without an address, or with one that is not host:port."""
    for address in values["bootstrap.servers"]:
        read_address(address)
    if not values["bootstrap.servers"]:
        raise ConfigError("bootstrap.servers is empty: name at least one broker as host:port")


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How tasks produce. Everything has a default that suits most."""

    codec: int = 0
    level: int | None = None
    #: The target size of a batch. A single row may be as large as the topic allows.
    batch_bytes: int = DEFAULT_BATCH_BYTES
    #: The largest batch that a task may send, if less than what the topic allows.
    largest_request_bytes: int | None = None
    #: Encoded batches that may wait in a task.
    unsent_bytes: int = 16 << 20
    #: How long a batch may take until it is acknowledged.
    deadline_ms: int = 120_000
    #: How long a step of the transaction may take.
    step_ms: int = 120_000

    @property
    def rows_bytes(self) -> int:
        """So many bytes of rows are worth a batch. Encoded they are a little more, and then still fit into one."""
        return self.batch_bytes * 4 // 5


DEFAULT_PRODUCER = ProducerOptions()


def sink_settings(
    bootstrap_servers: str, kafka: Mapping[str, Any], client_id: str, compression: str | None
) -> tuple[ClientSettings, ProducerOptions]:
    """The settings of a sink: those of its connections, and those of its producers.

    `compression` is the argument of that name. Raises `ConfigError` for what cannot be meant, or would have no effect.
    """
    for name in ("key.serializer", "value.serializer", "interceptor.classes"):
        if name in kafka:
            raise ConfigError(f"{name}: {_NOT_OF_A_SINK[name]}")
    _refuse_names_of_other_clients(kafka)
    given = PRODUCER.parse(kafka)
    for name in _NOT_ZERO:
        if given[name] == 0:
            raise ConfigError(f"{name}=0: nothing is done in no time: give milliseconds, or leave it out")
    for name in given.explicit:
        if name in _NOT_OF_A_SINK:
            raise ConfigError(f"{name}: {_NOT_OF_A_SINK[name]}")
        if name in _FIXED and given[name] not in _FIXED[name]:
            raise ConfigError(f"{name}={given.text(name)}: a transaction needs {PRODUCER[name].write(_FIXED[name][0])}")
    if compression is not None and "compression.type" in given.explicit and compression != given["compression.type"]:
        raise ConfigError(
            f"compression.type={given['compression.type']}: the argument compression says {compression}; give one"
        )
    codec = codec_named(given["compression.type"] if compression is None else compression)
    level = LEVEL_SETTINGS.get(codec)

    def chosen(name: str, otherwise: Any) -> Any:
        return given[name] if name in given.explicit else otherwise

    plain = DEFAULT_PRODUCER
    options = ProducerOptions(
        codec,
        chosen(level, None) if level else None,
        max(1, chosen("batch.size", plain.batch_bytes)),
        chosen("max.request.size", None),
        chosen("buffer.memory", plain.unsent_bytes),
        chosen("delivery.timeout.ms", plain.deadline_ms),
        chosen("max.block.ms", plain.step_ms),
    )
    common = {name: value for name, value in kafka.items() if PRODUCER.aliases.get(name, name) in _COMMON}
    settings = {"client.id": client_id, **common, "bootstrap.servers": bootstrap_servers}
    return ClientSettings(settings), options
