"""The settings of a broker, of its topics and of its groups, and how one falls back to the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semel.config.codecs import AS_SENT, TOPIC_CODECS
from semel.config.security import BROKER_SECURITY, BROKER_TOKENS, SECURITY_PROTOCOLS, ZOOKEEPER_TLS
from semel.config.table import INT32_MAX, INT64_MAX, Setting, Table, Values

_WEEK_MS = 7 * 24 * 3600 * 1000
_DAY_MS = 24 * 3600 * 1000
#: Internal topics are created whole, when they are first needed, so their partitions are limited.
_INTERNAL_PARTITIONS_MAX = 10_000

_REPLICAS = ("[0-9]+:[0-9]+", "PARTITION:BROKER")

TOPIC = Table(
    "topic",
    [
        Setting("cleanup.policy", "list", ("delete",),
                "What happens to old data: delete it, compact it by key, or both.", choices=("delete", "compact"),
                broker_name="log.cleanup.policy"),
        Setting("compression.type", "string", AS_SENT,
                "The codec batches are stored with; `producer` keeps what was sent.",
                choices=TOPIC_CODECS, broker_name="compression.type"),
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
        Setting("follower.replication.throttled.replicas", "list", (), "Replicas whose catch-up is throttled.",
                items=_REPLICAS),
        Setting("leader.replication.throttled.replicas", "list", (),
                "Replicas whose serving of catch-up is throttled.", items=_REPLICAS),
        Setting("remote.storage.enable", "bool", False, "Tiered storage; not served here.", choices=("false",)),
        Setting("local.retention.bytes", "long", -2, "Local part of retention.bytes under tiered storage.", -2),
        Setting("local.retention.ms", "long", -2, "Local part of retention.ms under tiered storage.", -2),
    ],
)

#: Broker settings that are only defaults for topics. They are derived, so the two always agree.
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

#: Kafka's settings for several nodes, tiered storage and security, which have no effect here.
_OF_MANY_NODES = (
    "alter.log.dirs.replication.",
    "broker.heartbeat.interval.ms",
    "broker.session.timeout.ms",
    "controller.",
    "cordoned.log.dirs",
    "early.start.listeners",
    "follower.fetch.last.tiered.offset.enable",
    "group.share.",
    "group.streams.",
    "initial.broker.registration.timeout.ms",
    "inter.broker.protocol.version",
    "internal.metadata.",
    "leader.imbalance.",
    "listener.name.",
    "log.dir.failure.timeout.ms",
    "log.local.retention.bytes",
    "log.local.retention.ms",
    "metadata.",
    "num.replica.alter.log.dirs.threads",
    "num.replica.fetchers",
    "principal.builder.class",
    "quorum.",
    "remote.fetch.max.wait.ms",
    "remote.list.offsets.request.timeout.ms",
    "remote.log.",
    "replica.",
    "replication.quota.",
    # Each by its name: a misspelt check of tokens must not be passed by.
    "sasl.client.callback.handler.class",
    "sasl.kerberos.",
    "sasl.login.",
    "sasl.mechanism",
    "sasl.mechanism.controller.protocol",
    "sasl.oauthbearer.assertion.",
    "sasl.oauthbearer.client.credentials.",
    "sasl.oauthbearer.header.urlencode",
    "sasl.oauthbearer.jwt.retriever.class",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "server.max.startup.time.ms",
    "share.",
    # Each by its name: a misspelt setting of TLS must not be passed by.
    "ssl.allow.dn.changes",
    "ssl.allow.san.changes",
    "ssl.engine.factory.class",
    "ssl.keymanager.algorithm",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
    "telemetry.max.bytes",
    "unclean.leader.election.interval.ms",
    # Each by its name: a misspelt zookeeper.connect must not be passed by.
    "zookeeper.max.in.flight.requests",
    "zookeeper.metadata.migration.enable",
    "zookeeper.clientCnxnSocket",
)
#: Kafka's settings for its own threads, queues and buffers, which do not exist here.
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
    "client.quota.callback.class": "callbacks are Java classes; quotas are those that clients set",
    "sasl.oauthbearer.jwt.validator.class": "it is a Java class; tokens are checked as Kafka's BrokerJwtValidator does",
    "zookeeper.ssl.crl.enable": "lists of revoked certificates are not read",
    "zookeeper.ssl.ocsp.enable": "nobody is asked whether a certificate was revoked",
    "create.topic.policy.class.name": "policies are Java classes; nothing would hold clients to this one",
}

#: Kafka's class for access rules. The name is only a name here.
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
#: Its name in the files of a Kafka with ZooKeeper.
ACL_AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"

BROKER = Table(
    "broker",
    [
        *_TOPIC_DEFAULTS,
        Setting("node.id", "int", 1, "This broker's number.", 0),
        Setting("broker.id", "int", None, "The older name of node.id.", -1),
        Setting("zookeeper.connect", "string", "",
                "The ZooKeeper of a cluster, host:port,host:port/chroot. Empty: this broker is alone."),
        Setting("zookeeper.session.timeout.ms", "int", 18000,
                "After how long without a word from this broker ZooKeeper takes it for dead.", 1000),
        Setting("semel.cluster.join.with.topics", "bool", False,
                "Consent: a broker that was alone takes its topics into the ZooKeeper of zookeeper.connect, once and "
                "for good."),
        Setting("semel.cluster.accept.older.zookeeper", "bool", False,
                "Consent, for one start: ZooKeeper was restored from an old copy, and what has changed since is lost."),
        Setting("zookeeper.connection.timeout.ms", "int", None,
                "How long a start waits for ZooKeeper; as long as a session lasts, if it is not given.", 1),
        Setting("zookeeper.set.acl", "bool", False,
                "Whether only brokers may change what they create in ZooKeeper. They show who they are by "
                "semel.zookeeper.digest or by their certificate."),
        Setting("semel.zookeeper.digest", "password", None,
                "USER:PASSWORD for ZooKeeper's scheme `digest`; the same on all brokers.", not_empty=True),
        *ZOOKEEPER_TLS,
        Setting("replica.lag.time.max.ms", "long", 30000,
                "How long a follower may be behind before it leaves the in-sync set.", 1),
        Setting("broker.rack", "string", None, "Where this broker stands."),
        Setting("replica.selector.class", "string", "",
                "From which replica clients read. Empty: from the leader. RackAwareReplicaSelector: from one in their "
                "own rack (client.rack, broker.rack).", choices=("", LEADER_SELECTOR, RACK_AWARE_SELECTOR)),
        Setting("listeners", "list", ("PLAINTEXT://127.0.0.1:9092",), "Where the broker listens."),
        Setting("advertised.listeners", "list", None, "What clients are told to connect to; default: listeners."),
        Setting("log.dirs", "list", ("./semel-data",), "Where the data lives."),
        Setting("num.partitions", "int", 1, "Partitions of a topic that is created without a count.", 1),
        Setting("default.replication.factor", "int", 1, "Replicas of a topic that is created without a count.", 1),
        Setting("auto.create.topics.enable", "bool", True, "Whether asking for a missing topic creates it."),
        Setting("delete.topic.enable", "bool", True, "Whether topics may be deleted."),
        Setting("socket.request.max.bytes", "int", 104857600, "The largest request accepted.", 1),
        Setting("socket.send.buffer.bytes", "int", -1, "SO_SNDBUF of a connection; -1 leaves it to the system.", -1),
        Setting("socket.receive.buffer.bytes", "int", -1, "SO_RCVBUF of a connection; -1 leaves it to the system.", -1),
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
        Setting("transaction.state.log.num.partitions", "int", 50, "Partitions of __transaction_state.", 1,
                _INTERNAL_PARTITIONS_MAX),
        Setting("transaction.state.log.replication.factor", "short", 1, "Replicas of __transaction_state.", 1),
        Setting("transaction.state.log.min.isr", "int", 1, "min.insync.replicas of __transaction_state.", 1),
        Setting("transaction.state.log.segment.bytes", "int", 104857600, "segment.bytes of __transaction_state.", 1),
        Setting("transaction.state.log.load.buffer.size", "int", 5242880,
                "Read size while loading __transaction_state.", 1),
        Setting("transaction.partition.verification.enable", "bool", True,
                "Ask the coordinator before the first transactional append (protocol V1)."),
        Setting("transaction.two.phase.commit.enable", "bool", False, "Serve two-phase commit (KIP-939)."),
        Setting("offsets.topic.num.partitions", "int", 50, "Partitions of __consumer_offsets.", 1,
                _INTERNAL_PARTITIONS_MAX),
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
        Setting("quota.window.num", "int", 11, "How many windows a client's rate is measured over.", 1),
        Setting("quota.window.size.seconds", "int", 1, "How long such a window is.", 1),
        Setting("controller.quota.window.num", "int", 11,
                "How many windows' worth of changes a client may make at once.", 1),
        Setting("controller.quota.window.size.seconds", "int", 1, "How long such a window is.", 1),
        Setting("leader.replication.throttled.rate", "long", INT64_MAX,
                "Bytes per second for replicas that catch up; there are none to throttle.", 0),
        Setting("follower.replication.throttled.rate", "long", INT64_MAX,
                "Bytes per second for catching up; there is nobody to catch up with.", 0),
        Setting("replica.alter.log.dirs.io.max.bytes.per.second", "long", INT64_MAX,
                "Bytes per second for moves between data directories; there is one.", 0),
        Setting("controlled.shutdown.enable", "bool", True, "Whether a stop hands over leadership first."),
        Setting("auto.leader.rebalance.enable", "bool", True,
                "Whether leaders in a cluster go back to the first replica of their partition."),
        Setting("leader.imbalance.check.interval.seconds", "long", 300, "How often they do.", 1),
        Setting("process.roles", "list", ("broker", "controller"),
                "What this process is.", choices=("broker", "controller")),
        Setting("controller.quorum.voters", "list", (), "Accepted for Kafka's files."),
        Setting("controller.listener.names", "list", (), "Accepted for Kafka's files."),
        Setting("inter.broker.listener.name", "string", None, "The listener brokers use among themselves."),
        Setting("listener.security.protocol.map", "list", tuple(f"{one}:{one}" for one in SECURITY_PROTOCOLS),
                "Which listener speaks what."),
        Setting("security.inter.broker.protocol", "string", "PLAINTEXT",
                "The protocol brokers use among themselves, where inter.broker.listener.name does not name a listener.",
                choices=SECURITY_PROTOCOLS, upper=True),
        Setting("sasl.mechanism.inter.broker.protocol", "string", "GSSAPI",
                "How brokers log in to each other where their listener has SASL: PLAIN, SCRAM-SHA-256 or "
                "SCRAM-SHA-512, with username and password in sasl.jaas.config."),
        *BROKER_SECURITY,
        Setting("authorizer.class.name", "string", "",
                "Who decides what a client may do. Empty: everybody may do everything. StandardAuthorizer: access "
                "rules (ACLs) decide. AclAuthorizer is the same here.",
                choices=("", STANDARD_AUTHORIZER, ACL_AUTHORIZER)),
        Setting("super.users", "string", "", "Who may do everything, whatever the rules say: User:a;User:b."),
        Setting("allow.everyone.if.no.acl.found", "bool", False,
                "Whether everybody may do everything with a resource that no rule names."),
        Setting("sasl.enabled.mechanisms", "list", (),
                "The mechanisms of listeners with SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER."),
        Setting("sasl.jaas.config", "password", None,
                "Users and passwords for PLAIN, as a JAAS line: PlainLoginModule required user_NAME=\"PASSWORD\" ...;"),
        Setting("sasl.server.max.receive.size", "int", 524288, "The largest request before a client is authenticated."),
        Setting("connections.max.reauth.ms", "long", 0,
                "How long a client may go on before it has to authenticate again; 0: for ever."),
        Setting("connection.failed.authentication.delay.ms", "int", 100,
                "How long a client that failed to authenticate waits for its answer.", 0),
        *BROKER_TOKENS,
        Setting("delegation.token.secret.key", "password", None,
                "The key of delegation tokens; without it there are none. Another key makes all tokens worthless.",
                not_empty=True),
        Setting("delegation.token.max.lifetime.ms", "long", 7 * _DAY_MS,
                "The longest a delegation token may live, however often it is renewed.", 1),
        Setting("delegation.token.expiry.time.ms", "long", _DAY_MS,
                "How long a delegation token lives until it has to be renewed.", 1),
        Setting("delegation.token.expiry.check.interval.ms", "long", 3600000,
                "How often delegation tokens that have ended are removed.", 1),
        Setting("semel.sasl.plain.users.file", "string", None,
                "A file with users and passwords for PLAIN, NAME:PASSWORD in each line. Read again when it changes.",
                not_empty=True),
        Setting("semel.durability", "string", "os",
                "When a write counts: `os` as Kafka (page cache), or `fsync`, where one fsync serves all that wait.",
                choices=("os", "fsync")),
        Setting("semel.queued.max.response.bytes", "long", 268435456,
                "Bytes of answers that clients have not read before requests for more records wait, and those who do "
                "not read lose their connections; one answer takes at most a quarter of what is left. -1 is no limit.",
                -1),
        Setting("semel.request.arrival.timeout.ms", "int", 30000,
                "How long a request may take from its first byte to its last, or to each further 64 KB. A sixth of it "
                "is how long a connection may stand still with memory that others wait for.", 1),
        Setting("semel.authentication.timeout.ms", "int", 10000,
                "How long a client may take for its TLS handshake, and then to say who it is; it is disconnected "
                "after that.", 1),
        Setting("semel.metrics.port", "int", -1, "HTTP port for Prometheus; -1 is off, 0 any free port.", -1, 65535),
        Setting("semel.metrics.host", "string", "127.0.0.1", "Address of the metrics port.", not_empty=True),
        Setting("semel.request.max.elements", "int", 100_000,
                "The most topics, partitions, groups and other elements that one request may name in all; a "
                "connection that sends more is closed.", 1000),
        Setting("semel.cluster.id", "string", None, "The cluster's id; made up at the first start when not given.",
                not_empty=True),
    ],
    passed_by=_OF_MANY_NODES + _OF_A_JVM,
    refused=_PROMISES_NOT_KEPT,
    of_listeners=("ssl.", "sasl.", "connections.max.reauth.ms", "semel.sasl."),
)


class ListenerSettings:
    """The settings of one listener: `listener.name.NAME.SETTING` comes before SETTING itself, as in Kafka."""

    __slots__ = ("_prefix", "_settings", "name")

    def __init__(self, settings: Values, name: str) -> None:
        self.name = name
        self._settings = settings
        self._prefix = f"listener.name.{name.lower()}."

    def __getitem__(self, name: str) -> Any:
        own = self._prefix + name
        return self._settings[own if own in self._settings.explicit else name]

    def own(self, name: str) -> Any:
        """The value given for this listener alone (`plain.sasl.jaas.config` is that of one mechanism), or None."""
        own = self._prefix + name
        return self._settings[own] if own in self._settings.explicit else None

    def __repr__(self) -> str:
        return f"<settings of listener {self.name}>"


def listener_settings(settings: Values, listener_name: str) -> ListenerSettings:
    """What holds for one listener of a broker."""
    return ListenerSettings(settings, listener_name)


def topic_values(broker: Values, overrides: Mapping[str, object] | None = None) -> Values:
    """The settings of a topic: its own, else the broker's, else Kafka's defaults."""
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


#: The settings that a group of the consumer protocol may have of its own.
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
    """The settings of a group: its own, else the broker's."""
    given: dict[str, object] = {row.name: broker[row.broker_name] for row in GROUP if row.broker_name is not None}
    parsed = GROUP.parse({**given, **(overrides or {})})
    parsed.explicit = frozenset(overrides or {})
    return parsed
