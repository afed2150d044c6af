"""Rules by chance, and what follows from them: the questions that show every decision of an authorizer."""

from __future__ import annotations

import random
from typing import Any

from semel.machines.security.access import CLUSTER_NAME, AccessRule, Operation, PatternType, Permission, ResourceType
from semel.wire.messages.groups import DescribeGroupsRequest
from semel.wire.messages.metadata import DescribeClusterRequest, MetadataRequest
from semel.wire.messages.transactions import InitProducerIdRequest
from tests.broker.access.sides import Side

#: How many users have rules by chance.
USERS = 120
#: What follows the user's own letters in a name: some names begin with others.
NAMES = ("", "a", "ab", "abc", "b")
#: Clients come from the first of them.
HOSTS = ("127.0.0.1", "10.0.0.1", "*", "*", "*")
_OPERATIONS = [one for one in Operation if one > Operation.ANY]
#: What everybody may be allowed without making a difference to others' answers.
_HARMLESS = [Operation.READ, Operation.DESCRIBE, Operation.ALTER_CONFIGS, Operation.DELETE]
_KINDS = (ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)


def user(number: int) -> str:
    return f"chance{number}"


def own(number: int, name: str) -> str:
    """A name that only one user has rules about."""
    return f"c{number:03}-{name}"


def rules_of(number: int) -> list[AccessRule]:
    """Rules by chance, the same for every run."""
    chance = random.Random(number)
    return [_rule(chance, number) for _ in range(chance.randint(1, 7))]


def _rule(chance: random.Random, number: int) -> AccessRule:
    kind = chance.choice(_KINDS)
    permission = chance.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY))
    pattern = chance.choice((PatternType.LITERAL, PatternType.PREFIXED))
    name = own(number, chance.choice(NAMES))
    who, operation = f"User:{user(number)}", chance.choice(_OPERATIONS)
    if kind == ResourceType.CLUSTER:
        pattern, name = PatternType.LITERAL, CLUSTER_NAME
    elif chance.random() < 0.2:
        # By another way to say all names. A prefix * is that of names that begin with it, of which there are none.
        name = "*"
    elif chance.random() < 0.3:
        who = "User:*"
        operation = operation if permission == Permission.DENY else chance.choice(_HARMLESS)
    return AccessRule(kind, name, pattern, who, chance.choice(HOSTS), operation, permission)


def decisions(side: Side, raw: Any, number: int) -> dict[str, Any]:
    """What a broker decides about all that a user may ask for."""
    names = [own(number, name) for name in NAMES] + [f"d{number:03}"]
    row = MetadataRequest.MetadataRequestTopic
    metadata = MetadataRequest(
        topics=[row(name=name) for name in names],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    groups = DescribeGroupsRequest(groups=names, include_authorized_operations=True)
    cluster = DescribeClusterRequest(include_cluster_authorized_operations=True)
    return {
        "topics": side.tell(raw, metadata, 12),
        "groups": side.tell(raw, groups, 5),
        "cluster": side.tell(raw, cluster, 1),
        "may write anywhere": side.tell(raw, InitProducerIdRequest(transactional_id=None), 4),
    }
