"""What the broker serves. This table is the whole of it: an API that is not here is not advertised and not answered.

A handler takes the broker, the decoded request and the `Call`, and returns the response, None (no answer), or a
coroutine when it has to wait. Modules are imported on first use: a broker nobody asks for ACLs never loads them.
"""

from __future__ import annotations

from semel.wire.apis import ApiKey

#: ApiKey -> (module in this folder, function in it)
SERVED: dict[ApiKey, tuple[str, str]] = {
    ApiKey.PRODUCE: ("produce", "produce"),
    ApiKey.FETCH: ("fetch", "fetch"),
    ApiKey.LIST_OFFSETS: ("offsets", "list_offsets"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ("offsets", "offset_for_leader_epoch"),
    ApiKey.METADATA: ("metadata", "metadata"),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ("metadata", "describe_topic_partitions"),
    ApiKey.DESCRIBE_CLUSTER: ("metadata", "describe_cluster"),
    ApiKey.API_VERSIONS: ("versions", "api_versions"),
    ApiKey.UPDATE_FEATURES: ("versions", "update_features"),
    ApiKey.CREATE_TOPICS: ("topics", "create_topics"),
    ApiKey.DELETE_TOPICS: ("topics", "delete_topics"),
    ApiKey.CREATE_PARTITIONS: ("topics", "create_partitions"),
    ApiKey.DELETE_RECORDS: ("topics", "delete_records"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ("topics", "alter_partition_reassignments"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ("topics", "list_partition_reassignments"),
    ApiKey.ELECT_LEADERS: ("topics", "elect_leaders"),
    ApiKey.DESCRIBE_CONFIGS: ("configs", "describe_configs"),
    ApiKey.ALTER_CONFIGS: ("configs", "alter_configs"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ("configs", "incremental_alter_configs"),
    ApiKey.LIST_CONFIG_RESOURCES: ("configs", "list_config_resources"),
    ApiKey.DESCRIBE_LOG_DIRS: ("inspection", "describe_log_dirs"),
    ApiKey.DESCRIBE_PRODUCERS: ("inspection", "describe_producers"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: ("inspection", "alter_replica_log_dirs"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ("quotas", "describe_client_quotas"),
    ApiKey.ALTER_CLIENT_QUOTAS: ("quotas", "alter_client_quotas"),
    ApiKey.SASL_HANDSHAKE: ("security", "sasl_handshake"),
    ApiKey.SASL_AUTHENTICATE: ("security", "sasl_authenticate"),
    ApiKey.DESCRIBE_ACLS: ("security", "describe_acls"),
    ApiKey.CREATE_ACLS: ("security", "create_acls"),
    ApiKey.DELETE_ACLS: ("security", "delete_acls"),
    ApiKey.CREATE_DELEGATION_TOKEN: ("security", "create_delegation_token"),
    ApiKey.RENEW_DELEGATION_TOKEN: ("security", "renew_delegation_token"),
    ApiKey.EXPIRE_DELEGATION_TOKEN: ("security", "expire_delegation_token"),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: ("security", "describe_delegation_token"),
    ApiKey.FIND_COORDINATOR: ("coordinators", "find_coordinator"),
    ApiKey.INIT_PRODUCER_ID: ("transactions", "init_producer_id"),
    ApiKey.ADD_PARTITIONS_TO_TXN: ("transactions", "add_partitions_to_txn"),
    ApiKey.ADD_OFFSETS_TO_TXN: ("transactions", "add_offsets_to_txn"),
    ApiKey.END_TXN: ("transactions", "end_txn"),
    ApiKey.WRITE_TXN_MARKERS: ("transactions", "write_txn_markers"),
    ApiKey.DESCRIBE_TRANSACTIONS: ("transactions", "describe_transactions"),
    ApiKey.LIST_TRANSACTIONS: ("transactions", "list_transactions"),
    ApiKey.TXN_OFFSET_COMMIT: ("groups", "txn_offset_commit"),
    ApiKey.OFFSET_COMMIT: ("groups", "offset_commit"),
    ApiKey.OFFSET_FETCH: ("groups", "offset_fetch"),
    ApiKey.OFFSET_DELETE: ("groups", "offset_delete"),
    ApiKey.JOIN_GROUP: ("groups", "join_group"),
    ApiKey.SYNC_GROUP: ("groups", "sync_group"),
    ApiKey.HEARTBEAT: ("groups", "heartbeat"),
    ApiKey.LEAVE_GROUP: ("groups", "leave_group"),
    ApiKey.DESCRIBE_GROUPS: ("groups", "describe_groups"),
    ApiKey.LIST_GROUPS: ("groups", "list_groups"),
    ApiKey.DELETE_GROUPS: ("groups", "delete_groups"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ("groups", "consumer_group_heartbeat"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ("groups", "consumer_group_describe"),
}
