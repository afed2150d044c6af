"""A broker that was alone brings its topics: `machines.controller.joining`, carried out on the simulated tree."""

from __future__ import annotations

import pytest

from semel.errors import ErrorCode, Refused
from semel.machines.controller.decide import Examine
from semel.machines.controller.joining import OwnTopic, join
from semel.machines.controller.packing import MULTI_MAX_BYTES
from semel.machines.controller.registration import LeaveUncleanly
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths
from semel.machines.znodes.operations import Create, Multi
from semel.machines.znodes.values import BrokerLife, decode_config
from tests.machines.controller.cluster_in_a_tree import ClusterInATree

ID, ANOTHER_ID = "id-of-payments".ljust(22, "A"), "another-id".ljust(22, "A")
PAYMENTS = OwnTopic("payments", ID, (0, 7, 0), {"retention.ms": "5"})
LARGE = OwnTopic("large", ANOTHER_ID, tuple(range(4000)), {})


def missing(made: ClusterInATree, *topics: OwnTopic) -> list[Multi]:
    return join(made.image(), 1, topics, frozenset(made.children("/config/topics")))


def brought(made: ClusterInATree, *topics: OwnTopic) -> None:
    for multi in missing(made, *topics):
        made.carry_out(multi)


def is_led(made: ClusterInATree) -> None:
    made.do(Create(paths.life(1), BrokerLife("directory-1").encode()))
    made.carry_out(Multi((Create(paths.broker(1), b"{}", ephemeral=True),)), session=1)
    made.happens(Examine())


def test_the_topics_have_their_id_settings_and_one_replica_and_nobody_leads_them_yet() -> None:
    made = ClusterInATree()
    brought(made, PAYMENTS)
    image = made.image()
    assignment = image.topics["payments"].assignment
    assert assignment.topic_id == ID
    assert dict(assignment.partitions) == {0: (1,), 1: (1,), 2: (1,)}
    assert decode_config(made.tree.nodes["/config/topics/payments"].data, "") == {"retention.ms": "5"}
    states = [image.states[TopicPartition("payments", number)][0] for number in range(3)]
    assert [(state.leader, state.leader_epoch, state.isr) for state in states] == [
        (-1, 0, (1,)), (-1, 7, (1,)), (-1, 0, (1,)),
    ]
    assert missing(made, PAYMENTS) == []


def test_the_first_leadership_is_above_every_epoch_of_the_log() -> None:
    made = ClusterInATree()
    brought(made, PAYMENTS)
    is_led(made)
    states = [made.image().states[TopicPartition("payments", number)][0] for number in range(3)]
    assert [(state.leader, state.leader_epoch) for state in states] == [(1, 1), (1, 8), (1, 1)]


def test_whatever_a_killed_try_left_the_next_one_goes_on_from() -> None:
    whole = ClusterInATree()
    brought(whole, PAYMENTS, LARGE)
    count = len(missing(ClusterInATree(), PAYMENTS, LARGE))
    assert count > 2, "the topics must not fit into one multi"
    for done in range(count):
        made = ClusterInATree()
        for multi in missing(made, PAYMENTS, LARGE)[:done]:
            assert multi.size_bytes() <= MULTI_MAX_BYTES
            made.carry_out(multi)
        brought(made, PAYMENTS, LARGE)
        assert missing(made, PAYMENTS, LARGE) == []
        assert made.image().states.keys() == whole.image().states.keys()


def test_a_register_that_a_controller_made_meanwhile_gets_the_epoch_of_the_log() -> None:
    made = ClusterInATree(2)
    for multi in missing(made, LARGE)[:1]:
        made.carry_out(multi)
    made.happens(Examine(), session=2)
    brought(made, LARGE)
    for number, epoch in enumerate(LARGE.leader_epochs):
        state = made.image().states[TopicPartition("large", number)][0] if number % 1000 == 0 else None
        assert state is None or (state.leader, state.leader_epoch, state.isr) == (-1, epoch, (1,))


def test_another_topic_of_the_same_name_is_refused() -> None:
    made = ClusterInATree()
    brought(made, OwnTopic("payments", ANOTHER_ID, (0,), {}))
    with pytest.raises(Refused, match=r"another-id.*id-of-payments.*different topics") as refused:
        missing(made, LARGE, PAYMENTS)
    assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_settings_of_a_deleted_topic_do_not_stop_it() -> None:
    made = ClusterInATree()
    made.do(Create("/config/topics/payments", b""))
    brought(made, PAYMENTS)
    assert decode_config(made.tree.nodes["/config/topics/payments"].data, "") == {"retention.ms": "5"}


def test_after_a_power_failure_a_partition_that_is_nowhere_else_is_led_on() -> None:
    """E4 is for partitions of which another broker may have more."""
    made = ClusterInATree()
    brought(made, PAYMENTS)
    is_led(made)
    assert made.decide(LeaveUncleanly(1)) == []
