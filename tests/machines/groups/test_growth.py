"""Idle groups by the thousand: little memory each. How fast they come back from the log is a row of the bench."""

from __future__ import annotations

import tracemalloc

import pytest

from semel.errors import ErrorCode, InvariantViolation
from semel.machines.contract import StateRecord
from semel.machines.groups.coordinator import GroupCoordinator, GroupSettings
from semel.machines.groups.idle_entries import SHARED_EMPTY, with_entry, without_entry
from tests.machines.groups.group_driver import TOPICS, GroupDriver

GROUPS = 3_000
MOST_BYTES_PER_GROUP = 640


def written_log(protocol: str) -> list[StateRecord]:
    """Groups that somebody joined, committed one offset to, and left."""
    driver = GroupDriver(GroupSettings(group_initial_rebalance_delay_ms=0))
    for number in range(GROUPS):
        group = f"application-{number}"
        if protocol == "classic":
            driver.join(group=group, version=3)
            member = next(iter(driver.coordinator.groups[group].members))
            driver.sync(member, 1, {member: b""}, group=group)
            driver.commit(number, member_id=member, generation=1, group=group)
            driver.leave((member, None), group=group)
        else:
            epoch = driver.consumer_heartbeat("a", 0, instance="one", group=group).member_epoch
            assert driver.commit(number, member_id="a", generation=epoch, instance="one", group=group) is ErrorCode.NONE
            driver.consumer_heartbeat("a", -1, instance="one", group=group)
    return [entry for entry in driver.log if isinstance(entry, StateRecord)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_idle_groups_are_small_and_all_come_back(protocol: str) -> None:
    log = written_log(protocol)
    machine = GroupCoordinator(GroupSettings(), TOPICS)
    for partition in range(50):
        machine.load(partition, 0)
    for record in log:
        machine.replay(record)
    for partition in range(50):
        machine.loaded(partition, 0)
    assert len(machine.groups) == GROUPS
    del machine
    tracemalloc.start()
    try:
        again = GroupCoordinator(GroupSettings(), TOPICS)
        for partition in range(50):
            again.load(partition, 0)
        before, _ = tracemalloc.get_traced_memory()
        for record in log:
            again.replay(record)
        for partition in range(50):
            again.loaded(partition, 0)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / GROUPS < MOST_BYTES_PER_GROUP


def test_what_idle_groups_share_stays_empty() -> None:
    for write in (
        lambda: SHARED_EMPTY.__setitem__("a", 1),
        lambda: SHARED_EMPTY.update(a=1),
        lambda: SHARED_EMPTY.setdefault("a", 1),
    ):
        with pytest.raises(InvariantViolation):
            write()
    own = with_entry(SHARED_EMPTY, "a", 1)
    assert (own, SHARED_EMPTY) == ({"a": 1}, {})
    assert with_entry(own, "b", 2) is own
    assert without_entry(own, "a") is own
    assert without_entry(own, "b") is SHARED_EMPTY
