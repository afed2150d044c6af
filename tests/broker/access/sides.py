"""Apache Kafka and Semel side by side, with the same users, the same rules and the same topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from semel.broker.embedded import Broker
from semel.machines.security.access import CLUSTER_NAME, AccessRule, Operation, ResourceType
from semel.wire.messages.configs import DescribeClientQuotasRequest, DescribeConfigsRequest
from semel.wire.messages.fetch import ListOffsetsRequest
from semel.wire.messages.groups import DescribeGroupsRequest, ListGroupsRequest
from semel.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest
from semel.wire.messages.offsets import OffsetCommitRequest
from semel.wire.messages.quorum import DescribeQuorumRequest
from semel.wire.messages.security import (
    DescribeUserScramCredentialsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from semel.wire.messages.tokens import DescribeDelegationTokenRequest
from semel.wire.messages.transactions import (
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from tests.broker.access.rules import create, describe_request, described, rule
from tests.broker.raw import Raw, batch
from tests.support.authorizing_kafka import ADMIN, AUTHORIZER, PASSWORD, AuthorizingKafka
from tests.support.processes import free_port
from tests.support.waiting import until

CLOSED = "closed"
#: The user whose rule is the last that is made.
LAST = "last"
#: A topic that everybody asks for, one that nobody has a right on, one that is not there, and one for transactions.
T, HIDDEN, MISSING, TX = "t", "hidden", "missing", "tx"
#: A group with committed offsets, one that nobody has a right on, and a transactional id.
GROUP, HIDDEN_GROUP, ID, HIDDEN_ID = "g", "hidden-group", "id", "hidden-id"
MISSING_ID = uuid.UUID("00000000-0000-4000-8000-00000000dead")
#: No transaction is to end while the cells are compared.
TIMEOUT_MS = 900_000
#: What is the same on both sides. The coordinators have one partition, so that both see the same order of requests.
SETTINGS = {
    # Both are kept for a whole session of tests, and the administrator's connections with them.
    "connections.max.idle.ms": "86400000",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "auto.create.topics.enable": "true",
    "delegation.token.secret.key": "the key of all tokens",
    "group.coordinator.rebalance.protocols": "classic,consumer",
    # Nor is a member to be given up.
    "group.consumer.session.timeout.ms": "600000",
    "group.consumer.max.session.timeout.ms": "600000",
}


class Side:
    """One of the two brokers."""

    def __init__(self, name: str, with_password: str, plaintext: str) -> None:
        self.name = name
        self._with_password = with_password
        self.plaintext = plaintext
        self.ids = {MISSING: MISSING_ID}
        #: Transactional id -> producer id and epoch.
        self.producers: dict[str, tuple[int, int]] = {}
        self.admin = self.connect(ADMIN)

    def connect(self, user: str) -> Raw:
        """A connection of a user who has authenticated."""
        raw = Raw(self._with_password)
        assert raw.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        proof = f"\0{user}\0{PASSWORD}".encode()
        assert raw.ask(SaslAuthenticateRequest(auth_bytes=proof)).error_code == 0
        return raw

    def create(self, topic: str, partitions: int = 1) -> None:
        self.ids[topic] = self.admin.create(topic, partitions)

    def begin(self, transactional_id: str) -> None:
        """A new producer for a transactional id."""
        asked = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS)
        # Apache Kafka's coordinators are found before they have loaded what they know.
        def got() -> Any:
            answer = self.admin.ask(asked, 4)
            return None if answer.error_code else answer

        answer = until(got, what=f"a producer id of {self.name}")
        self.producers[transactional_id] = answer.producer_id, answer.producer_epoch

    def commit(self, group: str, *topics: str) -> None:
        """Commit an offset of these topics for a group."""
        asked = commit_request(self, group, *topics)

        def is_committed() -> bool:
            answer = self.admin.ask(asked, 9)
            return all(row.error_code == 0 for topic in answer.topics for row in topic.partitions)

        until(is_committed, what=f"a commit at {self.name}")

    def prepare(self) -> None:
        """The topics and groups that all cells share."""
        self.create(T, 2)
        for name in (HIDDEN, TX):
            self.create(name)
        for name in (T, HIDDEN):
            self.admin.produce(name, batch(b"a", b"b", b"c"))
        # The coordinators' topics are created when they are first looked for.
        for kind, key in enumerate((GROUP, ID)):
            asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            until(
                lambda asked=asked: self.admin.ask(asked).coordinators[0].error_code == 0,
                what=f"the coordinator of {key} at {self.name}",
            )
        for group in (GROUP, HIDDEN_GROUP):
            self.commit(group, T, HIDDEN)
        for transactional_id in (ID, HIDDEN_ID):
            self.begin(transactional_id)

    def set_rules(self, rules: Iterable[AccessRule]) -> None:
        """Store rules, and wait until they hold."""
        wanted = list(rules)
        for start in range(0, len(wanted), 500):
            assert not any(create(self.admin, *wanted[start : start + 500]))
        last = rule(ResourceType.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE, who=f"User:{LAST}")
        assert create(self.admin, last) == [0]
        # In Apache Kafka the broker learns them later, and so does the controller.
        until(lambda: last in described(self.admin), what=f"the rules at {self.name}")
        with self.connect(LAST) as raw:
            until(lambda: raw.ask(DescribeQuorumRequest()).error_code == 0, what=f"the rules at {self.name}")

    def tell(self, raw: Raw, request: Any, version: int) -> Any:
        """What is answered, in a form that both sides have alike."""
        try:
            answer = raw.ask(request, version)
        except ConnectionError:
            return CLOSED
        return alike(answer, {topic_id: name for name, topic_id in self.ids.items()})

    def state(self) -> dict[str, Any]:
        """All that a request could have changed."""
        ask = self.admin.ask
        topics = ask(MetadataRequest(topics=None)).topics
        groups = [row.group_id for row in ask(ListGroupsRequest()).groups]
        transactions = [row.transactional_id for row in ask(ListTransactionsRequest()).transaction_states]
        resource = DescribeConfigsRequest.DescribeConfigsResource
        named = [(2, row.name) for row in topics] + [(4, "1"), (4, ""), *((32, group) for group in groups)]
        rows = [resource(resource_type=kind, resource_name=name, configuration_keys=None) for kind, name in named]
        found: dict[str, Any] = {
            "topics": topics,
            "ends": ask(_offsets_request(topics, -1)).topics,
            "starts": ask(_offsets_request(topics, -2)).topics,
            "groups": ask(DescribeGroupsRequest(groups=groups)).groups,
            "transactions": ask(DescribeTransactionsRequest(transactional_ids=transactions)).transaction_states,
            "settings": ask(DescribeConfigsRequest(resources=rows)).results,
            "quotas": ask(DescribeClientQuotasRequest(components=[])).entries,
            "credentials": ask(DescribeUserScramCredentialsRequest(users=None)).results,
            "rules": ask(describe_request()).resources,
            "tokens": ask(DescribeDelegationTokenRequest(owners=None)).tokens,
        }
        return {what: str(_plain(rows)) for what, rows in found.items()}


def _offsets_request(topics: list[Any], timestamp: int) -> ListOffsetsRequest:
    row = ListOffsetsRequest.ListOffsetsPartition
    return ListOffsetsRequest(
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=topic.name,
                partitions=[row(partition_index=one.partition_index, timestamp=timestamp) for one in topic.partitions],
            )
            for topic in topics
        ]
    )


def commit_request(side: Side, group: str, *topics: str) -> OffsetCommitRequest:
    rows = [OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    return OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(name=name, topic_id=side.ids[name], partitions=rows)
            for name in topics
        ],
    )


#: What of an answer is compared: what it is about, and what is said of it.
_ABOUT = {
    "name", "topic", "topic_name", "group_id", "transactional_id", "key", "user", "resource_name", "resource_type",
    "partition_index", "partition", "index", "partition_id", "entity_name", "entity_type", "is_internal",
    "principal_type", "principal_name", "feature",
}


def alike(message: Any, names: dict[uuid.UUID, str]) -> Any:
    """An answer without what no two brokers have in common, such as offsets, ids and texts."""
    found: dict[str, Any] = {}
    for field in message.__slots__:
        value = getattr(message, field)
        if field.endswith(("error_code", "authorized_operations")) or field in _ABOUT:
            found[field] = int(value) if isinstance(value, int) else value
        elif field == "topic_id":
            found[field] = names.get(value, "a new one" if value.int else "none")
        elif isinstance(value, list) and value and hasattr(value[0], "__slots__") and field not in _LEFT_OUT:
            found[field] = sorted((alike(row, names) for row in value), key=repr)
    return found


#: Lists of what only one of the two has: its settings, its addresses.
_LEFT_OUT = {"configs", "brokers", "nodes", "api_keys", "supported_features", "finalized_features", "endpoints"}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if hasattr(value, "__slots__") and not isinstance(value, (uuid.UUID, int)):
        return {field: _plain(getattr(value, field)) for field in value.__slots__}
    return value


def login(users: Iterable[str]) -> str:
    """The JAAS text of a listener that these users may come by."""
    known = " ".join(f'user_{name}="{PASSWORD}"' for name in (ADMIN, LAST, *users))
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    return f'{module} username="{ADMIN}" password="{PASSWORD}" {known};'


@contextmanager
def both_sides(users: Iterable[str], **settings: str) -> Iterator[tuple[Side, Side]]:
    """Apache Kafka, and ours."""
    jaas = {"listener.name.admin.plain.sasl.jaas.config": login(users)}
    given = {**SETTINGS, **{name.replace("_", "."): value for name, value in settings.items()}, **jaas}
    address = f"127.0.0.1:{free_port()}"
    ours = {
        **given,
        "node.id": "1",
        "authorizer.class.name": AUTHORIZER,
        "super.users": f"User:{ADMIN};User:somebody-else",
        "sasl.enabled.mechanisms": "PLAIN",
        "listeners": f"PLAINTEXT://127.0.0.1:0,ADMIN://{address}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,ADMIN:SASL_PLAINTEXT",
    }
    with AuthorizingKafka(dict(given)) as kafka, Broker(settings=ours) as broker:
        assert isinstance(kafka, AuthorizingKafka)
        yield (
            Side("Apache Kafka", kafka.admin_servers, kafka.bootstrap_servers),
            Side("Semel", address, broker.bootstrap_servers),
        )
