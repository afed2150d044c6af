"""Where everything is in ZooKeeper: Apache Kafka 3.9's own paths, and `/semel` for what Kafka does not have."""

from __future__ import annotations

from semel.machines.znodes import access, tokens

CLUSTER_ID = "/cluster/id"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
DELETED_TOPICS = "/admin/delete_topics"
CONFIG_CHANGES = "/config/changes"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
LIVES = "/semel/brokers"
#: Which topics were deleted, by their ids. The data of one that has just vanished is not removed.
DELETIONS = "/semel/deletions"
#: There while a broker that was alone brings its topics.
JOINING = "/semel/joining"
#: Of which the salts of users are made that do not exist. Who reads it could read every user's keys as well.
SCRAM_SECRET = "/semel/scram_secret"

#: What must be there before anything else: nobody minds who creates it.
PERSISTENT = (
    "/cluster",
    "/brokers",
    BROKER_IDS,
    TOPICS,
    "/admin",
    DELETED_TOPICS,
    "/config",
    "/config/topics",
    "/config/brokers",
    "/config/users",
    "/config/clients",
    "/config/ips",
    "/config/groups",
    CONFIG_CHANGES,
    "/kafka-acl",
    "/kafka-acl-extended",
    "/kafka-acl-extended/prefixed",
    "/kafka-acl-changes",
    "/kafka-acl-extended-changes",
    *access.FOLDERS,
    "/delegation_token",
    tokens.FOLDER,
    tokens.CHANGES,
    "/semel",
    LIVES,
    DELETIONS,
)


def broker(broker_id: int) -> str:
    """Ephemeral: there while the broker lives."""
    return f"{BROKER_IDS}/{broker_id}"


def deletion(topic_id: str) -> str:
    """The beginning of a sequential node."""
    return f"{DELETIONS}/{topic_id}-"


def deleted_id(name: str) -> str:
    """Whose deletion a node is about."""
    return name[:-11]


def life(broker_id: int) -> str:
    """Its version in ZooKeeper is the broker epoch: it tells one life of a broker from the next."""
    return f"{LIVES}/{broker_id}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, number: int) -> str:
    return f"{TOPICS}/{name}/partitions/{number}"


def state(name: str, number: int) -> str:
    return f"{TOPICS}/{name}/partitions/{number}/state"


def deleted_topic(name: str) -> str:
    return f"{DELETED_TOPICS}/{name}"


def config(kind: str, entity: str) -> str:
    """`kind` is topics, brokers, users, clients, ips or groups."""
    return f"/config/{kind}/{entity}"


def config_change() -> str:
    """Sequential: the name gets a number."""
    return f"{CONFIG_CHANGES}/config_change_"
