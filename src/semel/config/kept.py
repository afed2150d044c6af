"""Kafka's dynamic broker settings that have no effect here. Tools may set, describe and remove them.

They are checked for their type and stored, nothing more. The list is that of Apache Kafka 4.3
(`DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS`) without those that work here, and a test holds it against Kafka's own
classes.
"""

from __future__ import annotations

from semel.config.table import INT32_MAX, INT64_MAX, OF_A_LISTENER, Setting, Table

_TLS = "How a JVM does TLS; OpenSSL does it here."
_SASL = "For Kerberos, for logins of the broker itself and for Java classes; there are none here."
_TIERS = "Tiered storage; there is none here."
_CLEANER = "Threads and buffers of Kafka's cleaner; compaction runs on one thread here."
_GROUPS = "Pauses and buffers of Kafka's group coordinators; ours writes at once."
_CONNECTIONS = "How connections are limited; here by `max.connections`, `max.connections.per.ip` and quotas."
_NODES = "For several brokers or directories; there is one of each here."
_JVM = "For Kafka's own plugins; there are none here."

KEPT = Table(
    "broker",
    [
        Setting("config.providers", "list", (), _JVM),
        Setting("cordoned.log.dirs", "list", (), _NODES),
        Setting("follower.fetch.last.tiered.offset.enable", "bool", False, _TIERS),
        Setting("group.consumer.assignment.interval.ms", "int", 1000, _GROUPS, 0),
        Setting("group.coordinator.cached.buffer.max.bytes", "int", 1048588, _GROUPS, 524288),
        Setting("group.share.assignment.interval.ms", "int", 1000, _GROUPS, 0),
        Setting("group.streams.assignment.interval.ms", "int", 1000, _GROUPS, 0),
        Setting("log.cleaner.io.buffer.load.factor", "double", 0.9, _CLEANER),
        Setting("log.cleaner.io.buffer.size", "int", 524288, _CLEANER, 0),
        Setting("log.cleaner.io.max.bytes.per.second", "double", 1.7976931348623157e308, _CLEANER),
        Setting("log.cleaner.threads", "int", 1, _CLEANER, 0),
        Setting("log.local.retention.bytes", "long", -2, _TIERS, -2),
        Setting("log.local.retention.ms", "long", -2, _TIERS, -2),
        Setting("max.connection.creation.rate", "int", INT32_MAX, _CONNECTIONS, 0),
        Setting("max.connections.per.ip.overrides", "string", "", _CONNECTIONS),
        Setting("metric.reporters", "list", ("org.apache.kafka.common.metrics.JmxReporter",), _JVM),
        Setting("num.replica.fetchers", "int", 1, _NODES, 1),
        Setting("principal.builder.class", "class",
                "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder", _SASL),
        Setting("remote.fetch.max.wait.ms", "int", 500, _TIERS, 1),
        Setting("remote.list.offsets.request.timeout.ms", "long", 30000, _TIERS, 1),
        Setting("remote.log.index.file.cache.total.size.bytes", "long", 1073741824, _TIERS, 1),
        Setting("remote.log.manager.copier.thread.pool.size", "int", 10, _TIERS, 1),
        Setting("remote.log.manager.copy.max.bytes.per.second", "long", INT64_MAX, _TIERS, 1),
        Setting("remote.log.manager.expiration.thread.pool.size", "int", 10, _TIERS, 1),
        Setting("remote.log.manager.fetch.max.bytes.per.second", "long", INT64_MAX, _TIERS, 1),
        Setting("remote.log.manager.follower.thread.pool.size", "int", 2, _TIERS, 1),
        Setting("remote.log.reader.threads", "int", 10, _TIERS, 1),
        Setting("sasl.kerberos.kinit.cmd", "string", "/usr/bin/kinit", _SASL),
        Setting("sasl.kerberos.min.time.before.relogin", "long", 60000, _SASL),
        Setting("sasl.kerberos.principal.to.local.rules", "list", ("DEFAULT",), _SASL),
        Setting("sasl.kerberos.service.name", "string", None, _SASL),
        Setting("sasl.kerberos.ticket.renew.jitter", "double", 0.05, _SASL),
        Setting("sasl.kerberos.ticket.renew.window.factor", "double", 0.8, _SASL),
        Setting("sasl.login.refresh.buffer.seconds", "short", 300, _SASL),
        Setting("sasl.login.refresh.min.period.seconds", "short", 60, _SASL),
        Setting("sasl.login.refresh.window.factor", "double", 0.8, _SASL),
        Setting("sasl.login.refresh.window.jitter", "double", 0.05, _SASL),
        Setting("share.coordinator.cached.buffer.max.bytes", "int", 1048588, _GROUPS, 524288),
        Setting("ssl.engine.factory.class", "class", None, _TLS),
        Setting("ssl.keymanager.algorithm", "string", "SunX509", _TLS),
        Setting("ssl.provider", "string", None, _TLS),
        Setting("ssl.secure.random.implementation", "string", None, _TLS),
        Setting("ssl.trustmanager.algorithm", "string", "PKIX", _TLS),
    ],
)

#: Settings that Kafka changes for one broker only, not for the whole cluster.
OF_ONE_BROKER = frozenset(
    (
        "cordoned.log.dirs",
        "listener.security.protocol.map",
        "listeners",
        "principal.builder.class",
        "sasl.enabled.mechanisms",
        "sasl.jaas.config",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal.to.local.rules",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.mechanism.inter.broker.protocol",
        "ssl.cipher.suites",
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.engine.factory.class",
        "ssl.key.password",
        "ssl.keymanager.algorithm",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    )
)
#: Those of one listener; two of them may also be changed for all listeners.
_OF_ALL_LISTENERS = frozenset(("max.connections", "max.connection.creation.rate", "num.network.threads"))
#: What follows a listener's name may begin with a SASL mechanism.
_OF_A_MECHANISM = (
    "connections.max.reauth.ms",
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
)
_KINDS = {"connections.max.reauth.ms": "long", "sasl.enabled.mechanisms": "list", "sasl.jaas.config": "password"}


def kept_setting(name: str) -> Setting | None:
    """The setting of this name that is stored without effect, also one of a single listener."""
    if name in KEPT:
        return KEPT[name]
    match = OF_A_LISTENER.fullmatch(name)
    if match is None:
        return None
    of_listener = match["setting"]
    if of_listener in KEPT and (of_listener in OF_ONE_BROKER or of_listener in _OF_ALL_LISTENERS):
        row = KEPT[of_listener]
        return Setting(name, row.kind, None, row.doc, row.least, row.most, row.choices)
    if of_listener in _OF_ALL_LISTENERS:
        return Setting(name, "int", None, _CONNECTIONS, 0)
    for ending in _OF_A_MECHANISM:
        if of_listener == ending or of_listener.endswith("." + ending):
            kind = _KINDS.get(ending, "class")
            return Setting(name, kind, None, _SASL)
    return None


def is_of_one_broker(name: str) -> bool:
    """Whether Kafka refuses to change it for all brokers at once."""
    return name in OF_ONE_BROKER or OF_A_LISTENER.fullmatch(name) is not None


def is_secret(name: str) -> bool:
    """Whether an ignored setting may hold a secret: its value is never shown."""
    return any(word in name for word in ("password", "secret", "jaas", "keystore.key", "certificate"))
