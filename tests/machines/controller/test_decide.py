"""Decisions carried out on the znodes: registration, the controller, elections, topics, reassignments."""

from __future__ import annotations

import pytest

from semel.cluster import session as zk
from semel.errors import ErrorCode, Refused
from semel.machines.controller.admin import (
    AddPartitions,
    CancelReassignment,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    Reassign,
    check_assignment,
)
from semel.machines.controller.decide import Examine
from semel.machines.controller.elections import could_be_led_by_their_first
from semel.machines.controller.image import Broker, Image
from semel.machines.controller.packing import MULTI_MAX_BYTES, pack
from semel.machines.controller.registration import BecomeController, Certify, LeaveUncleanly, Register, SayLeaving
from semel.machines.controller.writing import leader_write, write_state
from semel.machines.replication.values import PartitionState, WriteState
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths
from semel.machines.znodes.operations import Check, Create, SetData
from semel.machines.znodes.values import BrokerRegistration, Endpoint
from tests.machines.controller.cluster_in_a_tree import ClusterInATree

ID, ANOTHER_ID = "id-of-t".ljust(22, "A"), "id-of-another".ljust(22, "A")
REGISTRATION = BrokerRegistration((Endpoint("PLAINTEXT", "127.0.0.1", 9092),), {"PLAINTEXT": "PLAINTEXT"}, 1)


def cluster(replicas: tuple[int, ...] = (1, 2, 3)) -> ClusterInATree:
    """Three brokers, broker 1 the controller, and the topic "t" with one partition."""
    made = ClusterInATree(1, 2, 3)
    made.happens(BecomeController(1, 0))
    made.happens(CreateTopic("t", ID, {0: replicas}))
    return made


def set_state(made: ClusterInATree, state: PartitionState, topic: str = "t", partition: int = 0) -> None:
    where = TopicPartition(topic, partition)
    made.do(write_state(where, state, made.image().states[where][1]))


# --- Z2, Z4, E1, E6, E8: brokers and the controller


def test_e1_the_next_controller_has_the_next_epoch() -> None:
    made = cluster()
    assert (made.image().controller, made.image().controller_epoch) == (1, 1)
    with pytest.raises(zk.MultiRefused):
        made.happens(BecomeController(2, 0))
    assert made.image().controller_epoch == 1


def test_z2_a_controller_that_was_replaced_decides_nothing() -> None:
    made = cluster()
    made.dies(3)
    old = made.image()
    made.happens(Certify(1, 0))
    made.happens(BecomeController(2, 0), session=2)
    [multi] = made.decide(Examine(), old)
    with pytest.raises(zk.MultiRefused) as refused:
        made.carry_out(multi)
    assert refused.value.index == 0 and isinstance(refused.value.error, zk.BadVersion)


def test_z4_a_registration_begins_a_new_life_and_removes_what_is_left_of_the_last() -> None:
    made = cluster()
    made.happens(Register(2, REGISTRATION, "directory-2", life_version=0, stale=True), session=22)
    assert made.image().brokers[2].epoch == 1
    assert made.tree.nodes[paths.broker(2)].owner == 22
    made.happens(Register(4, REGISTRATION, "directory-4", life_version=None), session=4)
    assert made.image().brokers[4].epoch == 0 and made.image().brokers[4].live


def test_z4_of_two_registrations_at_once_one_is_refused() -> None:
    made = cluster()
    made.dies(2)
    event = Register(2, REGISTRATION, "directory-2", life_version=0)
    made.happens(event, session=22)
    with pytest.raises(zk.MultiRefused):
        made.happens(event, session=23)


def test_e6_a_death_certificate_is_for_one_life() -> None:
    made = cluster()
    made.happens(Register(2, REGISTRATION, "directory-2", life_version=0, stale=True), session=22)
    with pytest.raises(zk.MultiRefused):
        made.happens(Certify(2, 0))
    made.happens(Certify(2, 1))
    assert not made.image().brokers[2].live


def test_e6_the_controllers_certificate_ends_its_reign_too() -> None:
    made = cluster()
    made.happens(Certify(1, 0))
    assert made.image().controller is None and not made.image().brokers[1].live


def test_e8_whoever_says_that_it_leaves_leads_nothing_after_the_next_look() -> None:
    made = cluster()
    made.happens(SayLeaving(1, "directory-1", 0))
    made.happens(Examine())
    assert made.state("t") == PartitionState(2, 1, (2, 3), 0, controller_epoch=1)


# --- E2 to E5: elections


def test_e2_all_due_partitions_are_elected_in_one_multi_and_the_leaders_life_is_checked() -> None:
    made = cluster()
    made.happens(CreateTopic("many", ANOTHER_ID, dict.fromkeys(range(150), (1, 2, 3))))
    made.dies(1)
    [multi] = made.decide(Examine())
    assert multi.operations[0] == Check(paths.CONTROLLER_EPOCH, 1)
    assert multi.operations.count(Check(paths.life(2), 0)) == 1
    made.carry_out(multi)
    assert made.state("many", 149) == PartitionState(2, 1, (2, 3), 0, controller_epoch=1)
    assert made.decide(Examine()) == []


def test_z2_with_no_room_each_change_has_a_multi_of_its_own() -> None:
    """So that one that ZooKeeper refuses, because somebody changed that node by hand, keeps only itself out."""
    made = cluster()
    made.happens(CreateTopic("many", ANOTHER_ID, dict.fromkeys(range(3), (1, 2, 3))))
    made.dies(1)
    multis = made.decide(Examine(bound_bytes=0))
    set_state(made, made.state("many", 1)._replace(isr=(3, 1)), "many", 1)
    refused = 0
    for multi in multis:
        try:
            made.carry_out(multi)
        except zk.MultiRefused:
            refused += 1
    assert (len(multis), refused) == (4, 1)
    assert [made.state(topic, number).leader for topic, number in (("t", 0), ("many", 0), ("many", 2))] == [2, 2, 2]


def test_e2_an_election_of_a_life_that_is_over_is_refused() -> None:
    made = cluster()
    made.dies(1)
    [multi] = made.decide(Examine())
    made.happens(Register(2, REGISTRATION, "directory-2", life_version=0, stale=True), session=22)
    with pytest.raises(zk.MultiRefused):
        made.carry_out(multi)


def test_z1_a_decision_from_an_old_image_changes_nothing() -> None:
    made = cluster()
    made.dies(1)
    [multi] = made.decide(Examine())
    set_state(made, made.state("t")._replace(isr=(1, 2)))
    with pytest.raises(zk.MultiRefused):
        made.carry_out(multi)
    assert made.state("t").leader == 1


def test_e4_after_a_power_loss_a_broker_leaves_everything_before_it_registers() -> None:
    made = cluster()
    made.happens(CreateTopic("u", ANOTHER_ID, {0: (2, 3), 1: (3, 1)}))
    made.dies(3)
    made.happens(LeaveUncleanly(3))
    assert 3 not in {member for state, _ in made.image().states.values() for member in (*state.isr, *state.elr)}
    assert made.state("u", 1) == PartitionState(-1, 1, (1,), -1, controller_epoch=1)
    assert made.decide(LeaveUncleanly(3)) == []


def test_examining_some_partitions_leaves_the_others_alone() -> None:
    made = cluster()
    made.happens(CreateTopic("u", ANOTHER_ID, {0: (1, 2)}))
    made.dies(1)
    made.happens(Examine((TopicPartition("u", 0),)))
    assert (made.state("u").leader, made.state("t").leader) == (2, 1)


# --- R8: what a leader writes


def test_r8_who_joins_must_live_and_be_in_the_life_that_fetched() -> None:
    made = cluster()
    set_state(made, made.state("t")._replace(isr=(1, 2)))
    version = made.image().states[TopicPartition("t", 0)][1]
    wished = made.state("t")._replace(isr=(1, 2, 3))
    multi = leader_write(TopicPartition("t", 0), WriteState(wished, version, joining=(3, 0)))
    made.happens(Register(3, REGISTRATION, "directory-3", life_version=0, stale=True), session=33)
    with pytest.raises(zk.MultiRefused):
        made.carry_out(multi)
    again = leader_write(TopicPartition("t", 0), WriteState(wished, version, joining=(3, 1)))
    made.dies(3)
    with pytest.raises(zk.MultiRefused):
        made.carry_out(again)
    assert made.state("t").isr == (1, 2)


# --- E7: topics


def test_e7_a_topic_is_there_with_its_leaders_or_not_at_all() -> None:
    made = cluster()
    [multi] = made.decide(CreateTopic("u", ANOTHER_ID, {0: (2, 3), 1: (3, 1)}, {"retention.ms": "5"}))
    made.happens(Register(3, REGISTRATION, "directory-3", life_version=0, stale=True), session=33)
    with pytest.raises(zk.MultiRefused):
        made.carry_out(multi)
    assert "u" not in made.image().topics
    made.happens(CreateTopic("u", ANOTHER_ID, {0: (2, 3), 1: (3, 1)}, {"retention.ms": "5"}))
    assert made.state("u", 1) == PartitionState(3, 0, (3, 1), 1, controller_epoch=1)
    assert made.tree.nodes[paths.config("topics", "u")].data == b'{"version":1,"config":{"retention.ms":"5"}}'


def test_e7_of_a_topic_too_large_for_one_multi_the_controller_makes_what_is_missing() -> None:
    made = cluster()
    multis = made.decide(CreateTopic("large", ANOTHER_ID, dict.fromkeys(range(4000), (1, 2, 3))))
    assert len(multis) > 1
    made.carry_out(multis[0])  # and then its maker dies
    made.happens(Examine())
    assert len(made.children(paths.partitions("large"))) == 4_000
    assert made.decide(Examine()) == []


def test_e7_a_topic_goes_in_one_multi_with_its_settings() -> None:
    made = cluster()
    assert len(made.happens(DeleteTopic("t"))) == 1
    assert made.children(paths.TOPICS) == [] and made.children("/config/topics") == []


def test_e7_a_large_topic_goes_in_pieces_which_the_controller_goes_on_with() -> None:
    made = cluster()
    made.happens(CreateTopic("large", ANOTHER_ID, dict.fromkeys(range(6000), (1, 2, 3))))
    multis = made.decide(DeleteTopic("large"))
    assert len(multis) > 2
    for multi in multis[:2]:
        made.carry_out(multi)
    assert made.image().deleting == {"large"}
    made.happens(Examine())
    assert "large" not in made.image().topics and made.image().deleting == frozenset()


def test_e7_a_topic_of_the_same_name_that_came_meanwhile_is_not_deleted() -> None:
    made = cluster()
    [multi] = made.decide(DeleteTopic("t"))
    made.happens(AddPartitions("t", {1: (1, 2)}))
    with pytest.raises(zk.MultiRefused):
        made.carry_out(multi)


def test_partitions_are_added_with_their_leaders() -> None:
    made = cluster()
    made.happens(AddPartitions("t", {1: (2, 3), 2: (3, 1)}))
    assert made.state("t", 2).leader == 3
    with pytest.raises(Refused) as refused:
        made.decide(AddPartitions("t", {7: (2, 3)}))
    assert refused.value.code is ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (CreateTopic("t", ID, {0: (1,)}), ErrorCode.TOPIC_ALREADY_EXISTS),
        (CreateTopic("u", ANOTHER_ID, {0: (1, 1)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreateTopic("u", ANOTHER_ID, {0: ()}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreateTopic("u", ANOTHER_ID, {0: (9,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (DeleteTopic("u"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (Reassign("t", {9: (1,)}), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (CancelReassignment("t", (0,)), ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (CancelReassignment("t", (1,)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ElectLeaders((TopicPartition("t", 9),)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_what_cannot_be_is_refused(event: object, code: ErrorCode) -> None:
    with pytest.raises(Refused) as refused:
        cluster().decide(event)  # type: ignore[arg-type]
    assert refused.value.code is code


@pytest.mark.parametrize(
    ("partitions", "is_taken"),
    [
        ({0: (1, 2), 1: (2, 3)}, True),
        ({0: (1, 2), 1: (3, 1)}, True),
        ({0: (1,), 1: (1, 2)}, False),
        ({0: (1, 1)}, False),
        ({0: ()}, False),
        ({0: (9,)}, False),
        ({0: (3, 4)}, False),
    ],
)
def test_replicas_that_somebody_has_chosen_are_as_many_and_somebody_lives(
    partitions: dict[int, tuple[int, ...]], is_taken: bool
) -> None:
    brokers = {1: Broker(1, 0), 2: Broker(2, 0), 3: Broker(3, 0, live=False), 4: Broker(4, 0, leaving=True)}
    if is_taken:
        check_assignment(Image(brokers), partitions)
        return
    with pytest.raises(Refused) as refused:
        check_assignment(Image(brokers), partitions)
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


# --- E9: reassignments


def test_e9_a_topic_that_gets_more_replicas_is_written_while_they_are_filled() -> None:
    """Two must be in sync, and there was one replica: the empty ones do not count before they are in sync."""
    made = cluster((1,))
    assert made.image().topics["t"].needed(0) == 1
    made.happens(Reassign("t", {0: (1, 2, 3)}))
    assert made.image().topics["t"].needed(0) == 1
    set_state(made, made.state("t")._replace(isr=(1, 2, 3)))
    made.happens(Examine())
    assert made.image().topics["t"].needed(0) == 2


def test_e9_first_the_union_and_when_the_target_is_in_sync_the_target_alone() -> None:
    made = cluster((1, 2))
    made.happens(Reassign("t", {0: (3, 2)}))
    assignment = made.image().topics["t"].assignment
    assert (assignment.partitions[0], assignment.adding, assignment.removing) == ((3, 2, 1), {0: (3,)}, {0: (1,)})
    assert made.decide(Examine()) == []  # 3 is not in sync yet
    set_state(made, made.state("t")._replace(isr=(1, 2, 3)))
    assert len(made.happens(Examine())) == 1
    assignment = made.image().topics["t"].assignment
    assert (assignment.partitions[0], assignment.adding, assignment.removing) == ((3, 2), {}, {})
    assert made.state("t") == PartitionState(3, 1, (2, 3), 0, controller_epoch=1)


def test_e9_another_order_needs_no_copy() -> None:
    made = cluster((1, 2))
    made.happens(Reassign("t", {0: (2, 1)}))
    assignment = made.image().topics["t"].assignment
    assert (assignment.partitions[0], assignment.adding, assignment.removing) == ((2, 1), {}, {})


def test_e9_a_reassignment_can_be_taken_back() -> None:
    made = cluster((1, 2))
    made.happens(Reassign("t", {0: (3, 2)}))
    set_state(made, made.state("t")._replace(isr=(1, 3)))
    made.happens(CancelReassignment("t", (0,)))
    assignment = made.image().topics["t"].assignment
    assert (sorted(assignment.partitions[0]), assignment.adding, assignment.removing) == ([1, 2], {}, {})
    assert made.state("t") == PartitionState(1, 1, (1,), 0, (), controller_epoch=1)


def test_e9_a_second_target_replaces_the_first() -> None:
    made = cluster((1,))
    made.happens(Reassign("t", {0: (2,)}))
    made.happens(Reassign("t", {0: (3,)}))
    assignment = made.image().topics["t"].assignment
    assert (assignment.partitions[0], assignment.adding, assignment.removing) == ((3, 1), {0: (3,)}, {0: (1,)})


def test_e9_who_was_on_the_way_in_leaves_the_set_when_the_target_is_another() -> None:
    made = cluster((1,))
    made.happens(Reassign("t", {0: (2,)}))
    set_state(made, made.state("t")._replace(isr=(1, 2)))
    made.happens(Reassign("t", {0: (3,)}))
    assert made.state("t") == PartitionState(1, 1, (1,), 0, (), controller_epoch=1)


# --- elections on demand


def test_leaders_go_back_to_the_first_replica_where_it_is_in_sync() -> None:
    made = cluster()
    assert could_be_led_by_their_first(made.image()) == ()
    set_state(made, made.state("t")._replace(leader=2))
    assert could_be_led_by_their_first(made.image()) == (TopicPartition("t", 0),)
    set_state(made, made.state("t")._replace(leader=2, isr=(2, 3)))
    assert could_be_led_by_their_first(made.image()) == ()
    set_state(made, made.state("t")._replace(leader=2, isr=(1, 2, 3)))
    made.dies(1)
    assert could_be_led_by_their_first(made.image()) == ()


def test_the_preferred_leader_is_elected_if_it_is_in_sync() -> None:
    made = cluster()
    set_state(made, made.state("t")._replace(leader=2))
    made.happens(ElectLeaders((TopicPartition("t", 0),)))
    assert made.state("t").leader == 1
    assert made.decide(ElectLeaders((TopicPartition("t", 0),))) == []
    set_state(made, made.state("t")._replace(leader=2, isr=(2, 3)))
    with pytest.raises(Refused) as refused:
        made.decide(ElectLeaders((TopicPartition("t", 0),)))
    assert refused.value.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_an_unclean_election_on_demand_takes_whoever_lives() -> None:
    made = cluster()
    set_state(made, made.state("t")._replace(isr=(1,)))
    force = ElectLeaders((TopicPartition("t", 0),), unclean=True)
    assert made.decide(force) == []  # its leader lives
    made.dies(1)
    made.happens(force)
    assert (made.state("t").leader, made.state("t").isr) == (2, (2,))
    made.dies(2)
    made.dies(3)
    with pytest.raises(Refused) as refused:
        made.decide(force)
    assert refused.value.code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


# --- Z2: the bound


def test_z2_what_belongs_together_stays_together_and_no_multi_is_too_large() -> None:
    check = Check("/epoch", 3)
    changes = [(Check("/life", 1), Create(f"/a/{number}"), SetData(f"/a/{number}", bytes(300))) for number in range(99)]
    multis = pack(changes, (check,), bound_bytes=2_000)
    assert len(multis) > 10
    assert all(multi.size_bytes() <= 2_000 and multi.operations[:2] == (check, Check("/life", 1)) for multi in multis)
    assert [each for multi in multis for each in multi.operations[2:]] == [each for _, *two in changes for each in two]
    assert pack([], (check,)) == []
    assert MULTI_MAX_BYTES == 512 * 1024
