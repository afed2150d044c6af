"""What each API asks of the access rules before its handler runs.

A guard takes the `AccessControl`, the decoded request and the `Call`. It returns one of

- None: all of it is allowed, and the handler answers;
- an `Answer`: the handler is not called, this is the reply;
- a function: the guard has taken out of the request what is denied, the handler answers the rest, and the function
  adds the denied part to the handler's reply (or takes out of it what the client may not see). It gets None where the
  handler answers nothing (acks=0).

A guard of a request that may name very many things is a generator, as handlers are, and returns the same at its end. So
may the function be.
Modules are imported at their first request.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from semel.wire.apis import ApiKey

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call

#: Adds what was denied to a handler's reply.
Merge = Callable[[Any], Any]


class Answer:
    """The reply to a request that the handler does not get to see."""

    __slots__ = ("reply",)

    def __init__(self, reply: Any) -> None:
        self.reply = reply


Verdict = Answer | Merge | None
Guard = Callable[["AccessControl", Any, "Call"], Verdict | Generator[None, None, Verdict]]

#: ApiKey -> (module in this folder, function in it); None where Kafka asks nothing.
GUARDS: dict[ApiKey, tuple[str, str] | None] = {
    ApiKey.API_VERSIONS: None,
    ApiKey.SASL_HANDSHAKE: None,
    ApiKey.SASL_AUTHENTICATE: None,
    ApiKey.DESCRIBE_ACLS: ("acls", "describe_acls"),
    ApiKey.CREATE_ACLS: ("acls", "create_acls"),
    ApiKey.DELETE_ACLS: ("acls", "delete_acls"),
    # Only whether it may be described is asked, for the field of authorized operations.
    ApiKey.DESCRIBE_CLUSTER: None,
    ApiKey.PRODUCE: ("produce", "produce"),
    ApiKey.FETCH: ("fetch", "fetch"),
    ApiKey.LIST_OFFSETS: ("offsets", "list_offsets"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ("offsets", "offset_for_leader_epoch"),
    ApiKey.METADATA: ("metadata", "metadata"),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ("metadata", "describe_topic_partitions"),
    ApiKey.FIND_COORDINATOR: ("coordinators", "find_coordinator"),
    ApiKey.INIT_PRODUCER_ID: ("transactions", "init_producer_id"),
    ApiKey.ADD_PARTITIONS_TO_TXN: ("transactions", "add_partitions_to_txn"),
    ApiKey.ADD_OFFSETS_TO_TXN: ("transactions", "add_offsets_to_txn"),
    ApiKey.END_TXN: ("transactions", "end_txn"),
    ApiKey.WRITE_TXN_MARKERS: ("transactions", "write_txn_markers"),
    ApiKey.DESCRIBE_TRANSACTIONS: ("transactions", "describe_transactions"),
    ApiKey.LIST_TRANSACTIONS: ("transactions", "list_transactions"),
    ApiKey.DESCRIBE_PRODUCERS: ("transactions", "describe_producers"),
    ApiKey.TXN_OFFSET_COMMIT: ("committed_offsets", "txn_offset_commit"),
    ApiKey.OFFSET_COMMIT: ("committed_offsets", "offset_commit"),
    ApiKey.OFFSET_FETCH: ("committed_offsets", "offset_fetch"),
    ApiKey.OFFSET_DELETE: ("committed_offsets", "offset_delete"),
    ApiKey.JOIN_GROUP: ("groups", "join_group"),
    ApiKey.SYNC_GROUP: ("groups", "sync_group"),
    ApiKey.HEARTBEAT: ("groups", "heartbeat"),
    ApiKey.LEAVE_GROUP: ("groups", "leave_group"),
    ApiKey.DESCRIBE_GROUPS: ("groups", "describe_groups"),
    ApiKey.LIST_GROUPS: ("groups", "list_groups"),
    ApiKey.DELETE_GROUPS: ("groups", "delete_groups"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ("groups", "consumer_group_heartbeat"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ("groups", "consumer_group_describe"),
    ApiKey.CREATE_TOPICS: ("topics", "create_topics"),
    ApiKey.DELETE_TOPICS: ("topics", "delete_topics"),
    ApiKey.CREATE_PARTITIONS: ("topics", "create_partitions"),
    ApiKey.DELETE_RECORDS: ("topics", "delete_records"),
    ApiKey.DESCRIBE_CONFIGS: ("configs", "describe_configs"),
    ApiKey.ALTER_CONFIGS: ("configs", "alter_configs"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ("configs", "incremental_alter_configs"),
    ApiKey.LIST_CONFIG_RESOURCES: ("configs", "list_config_resources"),
    ApiKey.DESCRIBE_LOG_DIRS: ("cluster", "describe_log_dirs"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: ("cluster", "alter_replica_log_dirs"),
    ApiKey.ELECT_LEADERS: ("cluster", "elect_leaders"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ("cluster", "alter_partition_reassignments"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ("cluster", "list_partition_reassignments"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ("cluster", "describe_client_quotas"),
    ApiKey.ALTER_CLIENT_QUOTAS: ("cluster", "alter_client_quotas"),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ("cluster", "describe_user_scram_credentials"),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ("cluster", "alter_user_scram_credentials"),
    ApiKey.UPDATE_FEATURES: ("cluster", "update_features"),
    ApiKey.DESCRIBE_QUORUM: ("cluster", "describe_quorum"),
    ApiKey.CREATE_DELEGATION_TOKEN: ("delegation_tokens", "create_delegation_token"),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: ("delegation_tokens", "describe_delegation_token"),
    # The token itself says who may renew it and make it expire.
    ApiKey.RENEW_DELEGATION_TOKEN: None,
    ApiKey.EXPIRE_DELEGATION_TOKEN: None,
}
