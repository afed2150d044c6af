"""Every setting once, under Kafka's own name.

A row says what a setting is called, what it holds, its default, its bounds and what it is for. The properties file,
the dict given to a client, `--set`, DescribeConfigs and the generated reference all read the same rows, so none of
them can disagree. A name nobody knows is refused, and the refusal names the nearest one that exists.

>>> values = BROKER.parse({"log.segment.bytes": "1048576"})
>>> values["log.segment.bytes"], values.num_partitions
(1048576, 1)
>>> BROKER.parse({"log.segment.byte": "1"})
Traceback (most recent call last):
...
semel.config.ConfigError: unknown broker setting 'log.segment.byte'; did you mean 'log.segment.bytes'?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

#: How a row's kind is reported by DescribeConfigs (Kafka's ConfigResponse types).
KIND_CODES = {
    "bool": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
    "password": 9,
}


class ConfigError(ValueError):
    """A setting that does not exist or cannot hold what it was given; the text says which and what would do."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: a name, what it holds, and why it is there."""

    name: str
    kind: str
    default: Any
    doc: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    #: The broker-wide setting a topic falls back to, under Kafka's name for it.
    broker_name: str | None = None

    def read(self, given: object) -> Any:
        """Turn what a person or a program gave into the value, or say what is wrong with it."""
        if given is None:
            return None
        value = self._converted(given)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if self.least is not None and value < self.least:
                raise ConfigError(f"{self.name}={given}: must be at least {self.least:g}")
            if self.most is not None and value > self.most:
                raise ConfigError(f"{self.name}={given}: must be at most {self.most:g}")
        if self.choices:
            for item in value if isinstance(value, tuple) else (value,):
                if self.write(item) not in self.choices:
                    raise ConfigError(f"{self.name}={given}: must be one of {', '.join(self.choices)}")
        return value

    def _converted(self, given: object) -> Any:
        text = given.strip() if isinstance(given, str) else given
        try:
            if self.kind == "bool":
                if isinstance(text, bool):
                    return text
                return {"true": True, "false": False}[str(text).lower()]
            if self.kind in ("int", "long", "short"):
                if isinstance(text, (bool, float)):
                    raise ValueError
                return int(text)  # type: ignore[call-overload]
            if self.kind == "double":
                return float(text)  # type: ignore[arg-type]
        except (ValueError, KeyError, TypeError):
            wanted = {"bool": "true or false", "double": "a number"}.get(self.kind, "a whole number")
            raise ConfigError(f"{self.name}={given}: must be {wanted}") from None
        if self.kind == "list":
            items = text.split(",") if isinstance(text, str) else list(text)  # type: ignore[call-overload]
            return tuple(str(item).strip() for item in items if str(item).strip())
        return text if isinstance(text, str) else given

    def write(self, value: Any) -> str | None:
        """The value as Kafka's tools print it."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


class Values:
    """Parsed settings: by Kafka's name with `[]`, or as an attribute with underscores for dots."""

    __slots__ = ("_by_attribute", "_values", "explicit", "table")

    def __init__(self, table: Table, values: dict[str, Any], explicit: frozenset[str]) -> None:
        self.table = table
        self._values = values
        self.explicit = explicit
        self._by_attribute = {name.replace(".", "_").replace("-", "_"): value for name, value in values.items()}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._by_attribute[name]
        except KeyError:
            raise AttributeError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={self._values[name]!r}" for name in sorted(self.explicit))
        return f"<{self.table.noun} settings: {given or 'all defaults'}>"

    def text(self, name: str) -> str | None:
        """One value as Kafka's tools print it."""
        return self.table[name].write(self._values[name])


class Table:
    """The settings one kind of thing has."""

    def __init__(
        self,
        noun: str,
        rows: list[Setting],
        passed_by: tuple[str, ...] = (),
        refused: Mapping[str, str] | None = None,
    ) -> None:
        self.noun = noun
        self.rows = {row.name: row for row in rows}
        #: Kafka's settings, or prefixes of them that end in a dot, that are accepted and mean nothing on one node.
        self.passed_by = passed_by
        #: Kafka's settings whose promise cannot be kept here, so that nobody relies on it.
        self.refused = refused or {}

    def __getitem__(self, name: str) -> Setting:
        return self.rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self.rows

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.rows.values())

    def row(self, name: str) -> Setting:
        """The row of this name, or an error that names the nearest one."""
        if name in self.rows:
            return self.rows[name]
        if name in self.refused:
            raise ConfigError(f"{self.noun} setting '{name}' is not served: {self.refused[name]}")
        import difflib  # only a mistake pays for it

        near = difflib.get_close_matches(name, self.rows, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ConfigError(f"unknown {self.noun} setting '{name}'{hint}")

    def passes_by(self, name: str) -> bool:
        """Whether a setting is one of Kafka's that is accepted without a meaning."""
        if name in self.rows:
            return False
        return any(name.startswith(one) if one.endswith(".") else name == one for one in self.passed_by)

    def parse(self, given: Mapping[str, object] | None = None) -> Values:
        """Defaults with what was given laid over them."""
        values = {row.name: row.default for row in self.rows.values()}
        explicit = set()
        for name, value in (given or {}).items():
            if self.passes_by(name):
                continue
            values[name] = self.row(name).read(value)
            explicit.add(name)
        return Values(self, values, frozenset(explicit))


_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_WEEK_MS = 7 * 24 * 3600 * 1000
_DAY_MS = 24 * 3600 * 1000

TOPIC = Table(
    "topic",
    [
        Setting("cleanup.policy", "list", ("delete",),
                "What happens to old data: delete it, compact it by key, or both.", choices=("delete", "compact"),
                broker_name="log.cleanup.policy"),
        Setting("compression.type", "string", "producer",
                "The codec batches are stored with; `producer` keeps what was sent.",
                choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), broker_name="compression.type"),
        Setting("compression.gzip.level", "int", -1, "Gzip level used where the broker itself compresses.", -1, 9,
                broker_name="compression.gzip.level"),
        Setting("compression.lz4.level", "int", 9, "Lz4 level used where the broker itself compresses.", 1, 17,
                broker_name="compression.lz4.level"),
        Setting("compression.zstd.level", "int", 3, "Zstd level used where the broker itself compresses.", -131072, 22,
                broker_name="compression.zstd.level"),
        Setting("delete.retention.ms", "long", _DAY_MS, "How long a tombstone or marker survives compaction.", 0,
                broker_name="log.cleaner.delete.retention.ms"),
        Setting("file.delete.delay.ms", "long", 60000, "How long a removed segment stays on disk, renamed.", 0,
                broker_name="log.segment.delete.delay.ms"),
        Setting("flush.messages", "long", INT64_MAX, "Force an fsync after this many records.", 1,
                broker_name="log.flush.interval.messages"),
        Setting("flush.ms", "long", INT64_MAX,
                "Force an fsync after this long.", 0, broker_name="log.flush.interval.ms"),
        Setting("index.interval.bytes", "int", 4096, "How many bytes of log lie between two index entries.", 0,
                broker_name="log.index.interval.bytes"),
        Setting("max.compaction.lag.ms", "long", INT64_MAX, "The longest a record may wait for compaction.", 1,
                broker_name="log.cleaner.max.compaction.lag.ms"),
        Setting("max.message.bytes", "int", 1048588, "The largest record batch accepted.", 0,
                broker_name="message.max.bytes"),
        Setting("message.timestamp.after.max.ms", "long", 3600000,
                "How far a record's time may lie ahead of the broker's.", 0,
                broker_name="log.message.timestamp.after.max.ms"),
        Setting("message.timestamp.before.max.ms", "long", INT64_MAX,
                "How far a record's time may lie behind the broker's.", 0,
                broker_name="log.message.timestamp.before.max.ms"),
        Setting("message.timestamp.type", "string", "CreateTime",
                "Whose clock stamps a record: the producer's or the broker's.",
                choices=("CreateTime", "LogAppendTime"), broker_name="log.message.timestamp.type"),
        Setting("min.cleanable.dirty.ratio", "double", 0.5, "How dirty a log must be before it is compacted.", 0, 1,
                broker_name="log.cleaner.min.cleanable.ratio"),
        Setting("min.compaction.lag.ms", "long", 0, "How long a record is safe from compaction.", 0,
                broker_name="log.cleaner.min.compaction.lag.ms"),
        Setting("min.insync.replicas", "int", 1, "How many replicas must have a write before acks=all is answered.", 1,
                broker_name="min.insync.replicas"),
        Setting("preallocate", "bool", False,
                "Reserve a segment's space when it is created.", broker_name="log.preallocate"),
        Setting("retention.bytes", "long", -1,
                "The size a partition may reach before old segments go; -1 is no limit.", -1,
                broker_name="log.retention.bytes"),
        Setting("retention.ms", "long", _WEEK_MS, "The age at which old segments go; -1 is never.", -1,
                broker_name="log.retention.ms"),
        Setting("segment.bytes", "int", 1073741824, "The size at which a segment is rolled.", 14,
                broker_name="log.segment.bytes"),
        Setting("segment.index.bytes", "int", 10485760, "The size an index may reach before its segment is rolled.", 4,
                broker_name="log.index.size.max.bytes"),
        Setting("segment.jitter.ms", "long", 0, "Spreads time-based rolls of many partitions.", 0,
                broker_name="log.roll.jitter.ms"),
        Setting("segment.ms", "long", _WEEK_MS, "The age at which a segment is rolled.", 1, broker_name="log.roll.ms"),
        Setting("unclean.leader.election.enable", "bool", False, "Whether an out-of-sync replica may lead.",
                broker_name="unclean.leader.election.enable"),
        Setting("follower.replication.throttled.replicas", "list", (), "Replicas whose catch-up is throttled."),
        Setting("leader.replication.throttled.replicas", "list", (),
                "Replicas whose serving of catch-up is throttled."),
        Setting("remote.storage.enable", "bool", False, "Tiered storage; not served here.", choices=("false",)),
        Setting("local.retention.bytes", "long", -2, "Local part of retention.bytes under tiered storage.", -2),
        Setting("local.retention.ms", "long", -2, "Local part of retention.ms under tiered storage.", -2),
    ],
)

#: Broker settings which are only defaults for topics: derived, so that the two can never drift apart.
_TOPIC_DEFAULTS = [
    Setting(
        row.broker_name,
        row.kind,
        row.default,
        f"Default of the topic setting {row.name}. {row.doc}",
        row.least,
        row.most,
        row.choices,
    )
    for row in TOPIC
    if row.broker_name is not None
]

#: Kafka's settings for several nodes, for tiers, for locks on doors that are not there.
_OF_MANY_NODES = (
    "alter.log.dirs.replication.",
    "auto.leader.rebalance.enable",
    "broker.heartbeat.interval.ms",
    "broker.session.timeout.ms",
    "connection.failed.authentication.delay.ms",
    "connections.max.reauth.ms",
    "controller.",
    "cordoned.log.dirs",
    "delegation.token.",
    "early.start.listeners",
    "follower.fetch.last.tiered.offset.enable",
    "group.share.",
    "group.streams.",
    "initial.broker.registration.timeout.ms",
    "inter.broker.protocol.version",
    "internal.metadata.",
    "leader.imbalance.",
    "log.dir.failure.timeout.ms",
    "log.local.retention.bytes",
    "log.local.retention.ms",
    "metadata.",
    "num.replica.alter.log.dirs.threads",
    "num.replica.fetchers",
    "principal.builder.class",
    "quorum.",
    "quota.window.num",
    "quota.window.size.seconds",
    "remote.fetch.max.wait.ms",
    "remote.list.offsets.request.timeout.ms",
    "remote.log.",
    "replica.",
    "replication.quota.",
    "sasl.",
    "security.inter.broker.protocol",
    "server.max.startup.time.ms",
    "share.",
    "ssl.",
    "telemetry.max.bytes",
    "unclean.leader.election.interval.ms",
    "zookeeper.",
)
#: Kafka's settings for its threads, queues and buffers, which are none of ours.
_OF_A_JVM = (
    "add.partitions.to.txn.",
    "config.providers",
    "config.providers.",
    "delete.records.purgatory.purge.interval.requests",
    "fetch.purgatory.purge.interval.requests",
    "group.consumer.assignment.interval.ms",
    "group.consumer.max.assignment.interval.ms",
    "group.consumer.min.assignment.interval.ms",
    "group.consumer.regex.refresh.interval.ms",
    "group.coordinator.append.linger.ms",
    "group.coordinator.background.threads",
    "group.coordinator.cached.buffer.max.bytes",
    "group.coordinator.threads",
    "kafka.metrics.",
    "log.cleaner.io.",
    "log.cleaner.threads",
    "log.initial.task.delay.ms",
    "log.roll.jitter.hours",
    "max.connection.creation.rate",
    "max.connections.per.ip.overrides",
    "max.request.partition.size.limit",
    "metric.reporters",
    "metrics.",
    "producer.purgatory.purge.interval.requests",
    "queued.max.requests",
    "security.providers",
    "socket.connection.setup.",
    "socket.listen.backlog.size",
    "unstable.api.versions.enable",
    "unstable.feature.versions.enable",
)
_PROMISES_NOT_KEPT = {
    "alter.config.policy.class.name": "policies are Java classes; nothing would hold clients to this one",
    "authorizer.class.name": "there are no ACLs, so anybody who can connect may do everything",
    "client.quota.callback.class": "there are no quotas",
    "create.topic.policy.class.name": "policies are Java classes; nothing would hold clients to this one",
}

BROKER = Table(
    "broker",
    [
        *_TOPIC_DEFAULTS,
        Setting("node.id", "int", 1, "This broker's number.", 0),
        Setting("broker.id", "int", None, "The older name of node.id.", -1),
        Setting("broker.rack", "string", None, "Where this broker stands."),
        Setting("listeners", "list", ("PLAINTEXT://127.0.0.1:9092",), "Where the broker listens."),
        Setting("advertised.listeners", "list", None, "What clients are told to connect to; default: listeners."),
        Setting("log.dirs", "list", ("./semel-data",), "Where the data lives."),
        Setting("num.partitions", "int", 1, "Partitions of a topic that is created without a count.", 1),
        Setting("default.replication.factor", "int", 1, "Replicas of a topic that is created without a count.", 1),
        Setting("auto.create.topics.enable", "bool", True, "Whether asking for a missing topic creates it."),
        Setting("delete.topic.enable", "bool", True, "Whether topics may be deleted."),
        Setting("socket.request.max.bytes", "int", 104857600, "The largest request accepted.", 1),
        Setting("socket.send.buffer.bytes", "int", 102400, "SO_SNDBUF; -1 leaves it to the system.", -1),
        Setting("socket.receive.buffer.bytes", "int", 102400, "SO_RCVBUF; -1 leaves it to the system.", -1),
        Setting("max.connections", "int", INT32_MAX, "The most connections at once.", 0),
        Setting("max.connections.per.ip", "int", INT32_MAX, "The most connections from one address.", 0),
        Setting("connections.max.idle.ms", "long", 600000, "When an idle connection is closed."),
        Setting("queued.max.request.bytes", "long", 268435456,
                "Bytes of requests in hand before reading stops; -1 is no limit.", -1),
        Setting("fetch.max.bytes", "int", 57671680, "The most bytes one fetch is answered with.", 1024),
        Setting("max.incremental.fetch.session.cache.slots", "int", 1000, "Fetch sessions remembered.", 0),
        Setting("log.retention.hours", "int", 168, "retention.ms in hours, where retention.ms is not set."),
        Setting("log.retention.minutes", "int", None, "retention.ms in minutes, where retention.ms is not set."),
        Setting("log.roll.hours", "int", 168, "segment.ms in hours, where log.roll.ms is not set.", 1),
        Setting("log.retention.check.interval.ms", "long", 300000, "How often retention is looked at.", 1),
        Setting("log.cleaner.enable", "bool", True, "Whether compaction runs."),
        Setting("log.cleaner.backoff.ms", "long", 15000, "How long compaction rests when nothing is dirty.", 0),
        Setting("log.cleaner.dedupe.buffer.size", "long", 134217728,
                "The most memory compaction may use for keys.", 1048576),
        Setting("log.flush.scheduler.interval.ms", "long", INT64_MAX, "How often time-based flushes are looked at."),
        Setting("log.flush.offset.checkpoint.interval.ms", "int", 60000, "How often recovery points are written.", 0),
        Setting("log.flush.start.offset.checkpoint.interval.ms", "int", 60000,
                "How often log start offsets are written.", 0),
        Setting("producer.id.expiration.ms", "int", _DAY_MS, "When a silent producer's state is forgotten.", 1),
        Setting("producer.id.expiration.check.interval.ms", "int", 600000,
                "How often silent producers are looked for.", 1),
        Setting("transaction.max.timeout.ms", "int", 900000,
                "The longest transaction timeout a client may ask for.", 1),
        Setting("transactional.id.expiration.ms", "int", _WEEK_MS, "When an unused transactional id is forgotten.", 1),
        Setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", "int", 10000,
                "How often timed-out transactions are looked for.", 1),
        Setting("transaction.remove.expired.transaction.cleanup.interval.ms", "int", 3600000,
                "How often expired transactional ids are looked for.", 1),
        Setting("transaction.state.log.num.partitions", "int", 50, "Partitions of __transaction_state.", 1),
        Setting("transaction.state.log.replication.factor", "short", 1, "Replicas of __transaction_state.", 1),
        Setting("transaction.state.log.min.isr", "int", 1, "min.insync.replicas of __transaction_state.", 1),
        Setting("transaction.state.log.segment.bytes", "int", 104857600, "segment.bytes of __transaction_state.", 1),
        Setting("transaction.state.log.load.buffer.size", "int", 5242880,
                "Read size while loading __transaction_state.", 1),
        Setting("transaction.partition.verification.enable", "bool", True,
                "Ask the coordinator before the first transactional append (protocol V1)."),
        Setting("transaction.two.phase.commit.enable", "bool", False, "Serve two-phase commit (KIP-939)."),
        Setting("offsets.topic.num.partitions", "int", 50, "Partitions of __consumer_offsets.", 1),
        Setting("offsets.topic.replication.factor", "short", 1, "Replicas of __consumer_offsets.", 1),
        Setting("offsets.topic.segment.bytes", "int", 104857600, "segment.bytes of __consumer_offsets.", 1),
        Setting("offsets.topic.compression.codec", "int", 0, "Codec of __consumer_offsets.", 0, 4),
        Setting("offsets.load.buffer.size", "int", 5242880, "Read size while loading __consumer_offsets.", 1),
        Setting("offsets.retention.minutes", "int", 10080, "When an empty group's offsets are forgotten.", 1),
        Setting("offsets.retention.check.interval.ms", "long", 600000, "How often old offsets are looked for.", 1),
        Setting("offset.metadata.max.bytes", "int", 4096, "The longest metadata a commit may carry."),
        Setting("offsets.commit.timeout.ms", "int", 5000, "How long an offset commit may take.", 1),
        Setting("group.initial.rebalance.delay.ms", "int", 0, "How long a new group waits for more members.", 0),
        Setting("group.min.session.timeout.ms", "int", 6000, "The shortest session timeout a member may ask for.", 1),
        Setting("group.max.session.timeout.ms", "int", 1800000, "The longest session timeout a member may ask for.", 1),
        Setting("group.max.size", "int", INT32_MAX, "The most members of a group.", 1),
        Setting("group.coordinator.rebalance.protocols", "list", ("classic", "consumer"),
                "Group protocols served.", choices=("classic", "consumer", "streams", "share")),
        Setting("group.consumer.session.timeout.ms", "int", 45000, "Session timeout under the consumer protocol.", 1),
        Setting("group.consumer.min.session.timeout.ms", "int", 45000,
                "The shortest session timeout a group may set.", 1),
        Setting("group.consumer.max.session.timeout.ms", "int", 60000,
                "The longest session timeout a group may set.", 1),
        Setting("group.consumer.heartbeat.interval.ms", "int", 5000,
                "Heartbeat interval under the consumer protocol.", 1),
        Setting("group.consumer.min.heartbeat.interval.ms", "int", 5000,
                "The shortest heartbeat interval a group may set.", 1),
        Setting("group.consumer.max.heartbeat.interval.ms", "int", 15000,
                "The longest heartbeat interval a group may set.", 1),
        Setting("group.consumer.max.size", "int", INT32_MAX,
                "The most members of a group under the consumer protocol.", 1),
        Setting("group.consumer.assignors", "list", ("uniform", "range"),
                "Assignors of the server, the first is the default.", choices=("uniform", "range")),
        Setting("group.consumer.migration.policy", "string", "bidirectional",
                "Whether groups may change protocol while live.",
                choices=("bidirectional", "upgrade", "downgrade", "disabled")),
        Setting("background.threads", "int", 10, "Threads for background work.", 1),
        Setting("num.network.threads", "int", 3, "Accepted for Kafka's files; Semel has one event loop.", 1),
        Setting("num.io.threads", "int", 8, "Accepted for Kafka's files; Semel has one event loop.", 1),
        Setting("num.recovery.threads.per.data.dir", "int", 2, "Threads for recovery.", 1),
        Setting("request.timeout.ms", "int", 30000, "How long a request may take.", 1),
        Setting("leader.replication.throttled.rate", "long", INT64_MAX,
                "Bytes per second for replicas that catch up; there are none to throttle.", 0),
        Setting("follower.replication.throttled.rate", "long", INT64_MAX,
                "Bytes per second for catching up; there is nobody to catch up with.", 0),
        Setting("replica.alter.log.dirs.io.max.bytes.per.second", "long", INT64_MAX,
                "Bytes per second for moves between data directories; there is one.", 0),
        Setting("controlled.shutdown.enable", "bool", True, "Whether a stop hands over leadership first."),
        Setting("process.roles", "list", ("broker", "controller"),
                "What this process is.", choices=("broker", "controller")),
        Setting("controller.quorum.voters", "list", (), "Accepted for Kafka's files."),
        Setting("controller.listener.names", "list", (), "Accepted for Kafka's files."),
        Setting("inter.broker.listener.name", "string", None, "The listener brokers use among themselves."),
        Setting("listener.security.protocol.map", "list", ("PLAINTEXT:PLAINTEXT",), "Which listener speaks what."),
        Setting("semel.durability", "string", "os",
                "When a write counts: `os` as Kafka (page cache), or `fsync`, where one fsync serves all that wait.",
                choices=("os", "fsync")),
        Setting("semel.metrics.port", "int", -1, "HTTP port for Prometheus; -1 is off, 0 any free port.", -1, 65535),
        Setting("semel.metrics.host", "string", "127.0.0.1", "Address of the metrics port."),
        Setting("semel.cluster.id", "string", None, "The cluster's id; made up at the first start when not given."),
    ],
    passed_by=_OF_MANY_NODES + _OF_A_JVM,
    refused=_PROMISES_NOT_KEPT,
)


def topic_values(broker: Values, overrides: Mapping[str, object] | None = None) -> Values:
    """What holds for a topic: its own settings, else the broker's, else Kafka's default."""
    given: dict[str, object] = {}
    for row in TOPIC:
        if row.broker_name is not None and row.broker_name in broker.explicit:
            given[row.name] = broker[row.broker_name]
    if "log.retention.ms" not in broker.explicit:
        if "log.retention.minutes" in broker.explicit and broker["log.retention.minutes"] is not None:
            given["retention.ms"] = broker["log.retention.minutes"] * 60000
        elif "log.retention.hours" in broker.explicit:
            given["retention.ms"] = broker["log.retention.hours"] * 3600000
        if given.get("retention.ms", 0) in (-60000, -3600000):
            given["retention.ms"] = -1
    if "log.roll.ms" not in broker.explicit and "log.roll.hours" in broker.explicit:
        given["segment.ms"] = broker["log.roll.hours"] * 3600000
    parsed = TOPIC.parse({**given, **(overrides or {})})
    parsed.explicit = frozenset(overrides or {})
    return parsed


#: What a group of the consumer protocol may have of its own.
GROUP = Table(
    "group",
    [
        Setting("consumer.session.timeout.ms", "int", 45000, "How long a member may be silent.", 1,
                broker_name="group.consumer.session.timeout.ms"),
        Setting("consumer.heartbeat.interval.ms", "int", 5000, "The pause members make between two heartbeats.", 1,
                broker_name="group.consumer.heartbeat.interval.ms"),
    ],
)


def group_values(broker: Values, overrides: Mapping[str, object] | None = None) -> Values:
    """What holds for a group: its own settings, else the broker's."""
    given: dict[str, object] = {row.name: broker[row.broker_name] for row in GROUP if row.broker_name is not None}
    parsed = GROUP.parse({**given, **(overrides or {})})
    parsed.explicit = frozenset(overrides or {})
    return parsed


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
        Setting("security.protocol", "string", "PLAINTEXT", "How the connection is protected.", choices=("PLAINTEXT",)),
    ]


PRODUCER = Table(
    "producer",
    [
        *_common("semel-producer"),
        Setting("acks", "string", "all", "How many replicas must have a record before it counts.",
                choices=("all", "-1", "0", "1")),
        Setting("batch.size", "int", 16384, "The size a batch is closed at.", 0),
        Setting("buffer.memory", "long", 33554432, "Bytes of records that may wait to be sent.", 0),
        Setting("compression.type", "string", "none", "The codec of batches.", choices=_CODECS),
        Setting("delivery.timeout.ms", "int", 120000, "How long until a record is delivered or given up.", 0),
        Setting("enable.idempotence", "bool", True, "Whether the broker recognises retries."),
        Setting("linger.ms", "long", 5, "How long a batch waits to be filled.", 0),
        Setting("max.block.ms", "long", 60000, "How long send() and the transaction calls may block.", 0),
        Setting("max.in.flight.requests.per.connection", "int", 5,
                "Requests on the way at once; idempotence allows at most 5.", 1),
        Setting("max.request.size", "int", 1048576, "The largest produce request.", 0),
        Setting("partitioner.ignore.keys", "bool", False, "Spread keyed records like keyless ones."),
        Setting("retries", "int", INT32_MAX, "How often a batch is sent again.", 0),
        Setting("transaction.timeout.ms", "int", 60000,
                "How long a transaction may stay open before the broker aborts it.", 1),
        Setting("transactional.id", "string", None,
                "The name under which transactions survive a restart and fence a zombie."),
        Setting("transaction.two.phase.commit.enable", "bool", False, "Prepared transactions wait for ever (KIP-939)."),
    ],
)

CONSUMER = Table(
    "consumer",
    [
        *_common("semel-consumer"),
        Setting("group.id", "string", None, "The group this consumer is a member of."),
        Setting("group.instance.id", "string", None, "Makes the member static: it may restart without a rebalance."),
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
)

ADMIN = Table(
    "admin", [*_common("semel-admin"), Setting("default.api.timeout.ms", "int", 60000, "How long a call may block.", 0)]
)
