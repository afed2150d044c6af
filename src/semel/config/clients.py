"""The settings of producers, consumers and admin clients."""

from __future__ import annotations

from semel.config.codecs import CODECS
from semel.config.security import CLIENT_ALIASES, CLIENT_REFUSED, CLIENT_SECURITY
from semel.config.table import INT32_MAX, Setting, Table


def _common(client_id: str) -> list[Setting]:
    return [
        Setting("bootstrap.servers", "list", (), "Brokers to start from, host:port, comma-separated."),
        Setting("client.id", "string", client_id, "The name this client gives itself."),
        Setting("client.rack", "string", "", "Where this client stands."),
        Setting("request.timeout.ms", "int", 30000, "How long one request may take.", 0),
        Setting("retry.backoff.ms", "long", 100, "The first pause before a retry.", 0),
        Setting("retry.backoff.max.ms", "long", 1000, "The longest pause before a retry.", 0),
        Setting("reconnect.backoff.ms", "long", 50, "The first pause before reconnecting.", 0),
        Setting("reconnect.backoff.max.ms", "long", 1000, "The longest pause before reconnecting.", 0),
        Setting("connections.max.idle.ms", "long", 540000, "When an idle connection is closed."),
        Setting("metadata.max.age.ms", "long", 300000, "When metadata is asked for again.", 0),
        Setting("socket.connection.setup.timeout.ms", "long", 10000, "How long a connection may take to open."),
        Setting("send.buffer.bytes", "int", 131072, "SO_SNDBUF; -1 leaves it to the system.", -1),
        Setting("receive.buffer.bytes", "int", 65536, "SO_RCVBUF; -1 leaves it to the system.", -1),
        *CLIENT_SECURITY,
    ]


PRODUCER = Table(
    "producer",
    [
        *_common("semel-producer"),
        Setting("acks", "string", "all", "How many replicas must have a record before it counts.",
                choices=("all", "-1", "0", "1")),
        Setting("batch.size", "int", 16384, "The size a batch is closed at.", 0),
        Setting("buffer.memory", "long", 33554432, "Bytes of records that may wait to be sent.", 0),
        Setting("compression.type", "string", "none", "The codec of batches.", choices=CODECS),
        Setting("compression.gzip.level", "int", -1, "How hard gzip tries; -1 is its own choice.", -1, 9),
        Setting("compression.lz4.level", "int", 9, "How hard lz4 tries; 9 is its quick way.", 1, 17),
        Setting("compression.zstd.level", "int", 3, "How hard zstd tries.", -131072, 22),
        Setting("delivery.timeout.ms", "int", 120000, "How long until a record is delivered or given up.", 0),
        Setting("enable.idempotence", "bool", True, "Whether the broker recognises retries."),
        Setting("linger.ms", "long", 5, "How long a batch waits to be filled.", 0),
        Setting("max.block.ms", "long", 60000, "How long send() and the transaction calls may block.", 0),
        Setting("max.in.flight.requests.per.connection", "int", 5,
                "Requests on the way at once; idempotence allows at most 5.", 1),
        Setting("max.request.size", "int", 1048576, "The largest produce request.", 0),
        Setting("partitioner.ignore.keys", "bool", False, "Spread keyed records like keyless ones."),
        Setting("retries", "int", INT32_MAX, "How often a batch is sent again.", 0),
        Setting("semel.exit.timeout.ms", "int", 10000,
                "How long records of a producer that was dropped, or not closed when the program ends, are still sent.",
                0),
        Setting("transaction.timeout.ms", "int", 60000,
                "How long a transaction may stay open before the broker aborts it.", 1),
        Setting("transactional.id", "string", None,
                "The name under which transactions survive a restart and fence a zombie.", not_empty=True),
        Setting("transaction.two.phase.commit.enable", "bool", False, "Prepared transactions wait for ever (KIP-939)."),
    ],
    refused=CLIENT_REFUSED,
    aliases=CLIENT_ALIASES,
)

CONSUMER = Table(
    "consumer",
    [
        *_common("semel-consumer"),
        Setting("group.id", "string", None, "The group this consumer is a member of."),
        Setting("group.instance.id", "string", None, "Makes the member static: it may restart without a rebalance.",
                not_empty=True),
        Setting("group.protocol", "string", "classic", "Who assigns partitions: the members or the broker.",
                choices=("classic", "consumer")),
        Setting("group.remote.assignor", "string", None, "The broker's assignor under group.protocol=consumer."),
        Setting("partition.assignment.strategy", "list", ("range", "cooperative-sticky"),
                "Assignors, the preferred first.", choices=("range", "roundrobin", "sticky", "cooperative-sticky")),
        Setting("session.timeout.ms", "int", 45000, "When a silent member is taken for dead.", 1),
        Setting("heartbeat.interval.ms", "int", 3000, "How often a member reports.", 1),
        Setting("max.poll.interval.ms", "int", 300000, "How long between two polls before the member leaves.", 1),
        Setting("max.poll.records", "int", 500, "The most records one poll returns.", 1),
        Setting("auto.offset.reset", "string", "latest", "Where to start without a committed offset.",
                choices=("earliest", "latest", "none")),
        Setting("enable.auto.commit", "bool", True, "Whether positions are committed in the background."),
        Setting("auto.commit.interval.ms", "int", 5000, "How often positions are committed in the background.", 0),
        Setting("isolation.level", "string", "read_committed",
                "Whether records of open and aborted transactions are hidden. Semel hides them unless asked.",
                choices=("read_committed", "read_uncommitted")),
        Setting("fetch.min.bytes", "int", 1, "How much a fetch waits for.", 0),
        Setting("fetch.max.bytes", "int", 52428800, "The most bytes of one fetch.", 0),
        Setting("fetch.max.wait.ms", "int", 500, "How long a fetch waits.", 0),
        Setting("max.partition.fetch.bytes", "int", 1048576, "The most bytes of one partition in one fetch.", 0),
        Setting("check.crcs", "bool", True, "Whether every batch's CRC is checked."),
        Setting("allow.auto.create.topics", "bool", True, "Whether subscribing may create a topic."),
        Setting("default.api.timeout.ms", "int", 60000, "How long a call without a timeout may block.", 0),
        Setting("exclude.internal.topics", "bool", True, "Whether a pattern leaves internal topics out."),
    ],
    refused=CLIENT_REFUSED,
    aliases=CLIENT_ALIASES,
)

ADMIN = Table(
    "admin",
    [*_common("semel-admin"), Setting("default.api.timeout.ms", "int", 60000, "How long a call may block.", 0)],
    refused=CLIENT_REFUSED,
    aliases=CLIENT_ALIASES,
)
