"""Kafka's settings that are accepted without effect, and why: the one source for all pages that list them."""

from __future__ import annotations

_ONE_LOOP = "one event loop serves everything; recovery runs at the disk's speed on one core"
_ONE_NODE = "one node, no quorum"
_NO_CATCHING_UP = "no replica catches up with another, and nothing moves between directories"
_NO_TIERS = "no tiered storage"
_AT_ONCE = "internal topics are read in one piece and written at once; the broker asks nobody"

#: Settings of topics. The broker's defaults for them have no effect either.
TOPIC_SETTINGS = {
    "follower.replication.throttled.replicas": _NO_CATCHING_UP,
    "leader.replication.throttled.replicas": _NO_CATCHING_UP,
    "local.retention.bytes": _NO_TIERS,
    "local.retention.ms": _NO_TIERS,
    "preallocate": "segments grow as they are written",
    "remote.storage.enable": _NO_TIERS,
}
BROKER_SETTINGS = {
    "background.threads": _ONE_LOOP,
    "num.io.threads": _ONE_LOOP,
    "num.network.threads": _ONE_LOOP,
    "num.recovery.threads.per.data.dir": _ONE_LOOP,
    "controller.quorum.voters": _ONE_NODE,
    "process.roles": _ONE_NODE,
    "follower.replication.throttled.rate": _NO_CATCHING_UP,
    "leader.replication.throttled.rate": _NO_CATCHING_UP,
    "replica.alter.log.dirs.io.max.bytes.per.second": _NO_CATCHING_UP,
    "log.flush.start.offset.checkpoint.interval.ms": "the log start offset is written down when it moves",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (
        "a transaction is aborted when its time is up, not at the next look"
    ),
    "offsets.commit.timeout.ms": _AT_ONCE,
    "offsets.load.buffer.size": _AT_ONCE,
    "request.timeout.ms": _AT_ONCE,
    "transaction.state.log.load.buffer.size": _AT_ONCE,
}
CLIENT_SETTINGS: dict[str, str] = {}
