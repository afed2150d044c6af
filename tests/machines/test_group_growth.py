"""Idle groups by the thousand: little memory each, and back from the log quickly."""

from __future__ import annotations

import time
import tracemalloc

from semel.machines.contract import StateRecord
from semel.machines.group_coordinator import GroupCoordinator, GroupSettings
from tests.machines.group_host import TOPICS, Host

GROUPS = 3_000
MOST_BYTES_PER_GROUP = 640
#: Generous: a slow machine that runs other tests beside this one must pass too.
MOST_SECONDS = 2


def written_log() -> list[StateRecord]:
    """Groups that somebody joined, committed one offset to, and left."""
    host = Host(GroupSettings(group_initial_rebalance_delay_ms=0))
    for number in range(GROUPS):
        group = f"application-{number}"
        host.join(group=group, version=3)
        member = next(iter(host.machine.groups[group].members))
        host.sync(member, 1, {member: b""}, group=group)
        host.commit(number, member_id=member, generation=1, group=group)
        host.leave((member, None), group=group)
    return [entry[0] for entry in host.log if isinstance(entry, tuple)]


def test_idle_groups_are_small_and_quickly_loaded() -> None:
    log = written_log()
    machine = GroupCoordinator(GroupSettings(), TOPICS)
    for partition in range(50):
        machine.load(partition, 0)
    started = time.perf_counter()
    for record in log:
        machine.replay(record)
    for partition in range(50):
        machine.loaded(partition, 0)
    seconds = time.perf_counter() - started
    assert len(machine.groups) == GROUPS
    assert seconds < MOST_SECONDS
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
