"""A member that subscribes with a regular expression gets the topics that it may describe, and no others."""

from __future__ import annotations

import pytest

from semel.machines.security.access import Operation, ResourceType
from semel.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tests.broker.access.rules import delete, only, rule
from tests.broker.access.sides import Side, T
from tests.broker.access.situations import SITUATIONS
from tests.support.waiting import until

pytestmark = pytest.mark.java
GROUP_ID = "by-pattern"
#: Somebody who has no rules otherwise.
USER = SITUATIONS[0].user


def assigned(side: Side, user: str, member: str, group: str) -> set[str]:
    """The names of the topics that a member has in the end."""
    names = {topic_id: name for name, topic_id in side.ids.items()}
    with side.connect(user) as raw:
        joining = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            rebalance_timeout_ms=30_000,
            subscribed_topic_regex="t|hidden|tx|__consumer.*",
            subscribed_topic_names=None,
            topic_partitions=[],
        )
        answer = raw.ask(joining, 1)
        assert answer.error_code == 0, answer
        found: set[str] = set()

        def has_topics() -> bool:
            nonlocal answer
            if answer.assignment is not None:
                found.update(names.get(part.topic_id, "?") for part in answer.assignment.topic_partitions)
            if not found:
                again = ConsumerGroupHeartbeatRequest(
                    group_id=group, member_id=member, member_epoch=answer.member_epoch, rebalance_timeout_ms=-1
                )
                answer = raw.ask(again, 1)
                assert answer.error_code == 0, answer
            return bool(found)

        until(has_topics, what=f"topics for a member at {side.name}")
        leaving = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=-1)
        assert raw.ask(leaving, 1).error_code == 0
    return found


def test_a_pattern_finds_no_hidden_topic(sides: tuple[Side, Side]) -> None:
    needed = [
        rule(ResourceType.GROUP, GROUP_ID, Operation.READ, who=f"User:{USER}"),
        rule(ResourceType.TOPIC, T, Operation.DESCRIBE, who=f"User:{USER}"),
    ]
    found = []
    for side in sides:
        side.set_rules(needed)
        found.append(assigned(side, USER, "m", GROUP_ID))
        delete(side.admin, *[only(one) for one in needed])
    kafka, ours = found
    assert ours == kafka == {T}


def test_whoever_sees_all_topics_gets_all_topics(sides: tuple[Side, Side]) -> None:
    found = [assigned(side, "admin", "m", "by-pattern-of-admin") for side in sides]
    assert found[0] == found[1] > {T, "hidden", "tx"}
