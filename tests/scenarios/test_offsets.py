"""A group's offsets in a transaction: counted with the output and never without it. Scenarios 4, 15, 45."""

from __future__ import annotations

import pytest

from semel.broker.topics.internal import CONSUMER_OFFSETS
from semel.errors import ErrorCode
from tests.scenarios.stage import Stage
from tests.scenarios.test_coordinator_log import refuse_appends
from tests.support.waiting import until

E = ErrorCode
both_protocols = pytest.mark.parametrize("protocol", [1, 2])


def test_scenario_4_offsets_of_a_group_that_was_not_added_are_refused(stage: Stage) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer(protocol=1)
    assert producer.write("ledger", b"record") is E.NONE
    assert producer.commit_offset("readers", "ledger", 5) in (E.INVALID_TXN_STATE, E.TRANSACTION_ABORTABLE)
    assert scene.offset("readers", "ledger", stable=True) == (-1, E.NONE)
    assert producer.end(True) is E.NONE
    assert scene.offset("readers", "ledger") == (-1, E.NONE)


@both_protocols
def test_scenario_4_offsets_after_the_transaction_was_aborted_for_its_owner_are_refused(
    stage: Stage, protocol: int
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    zombie = scene.producer(protocol=protocol, timeout_ms=150)
    assert zombie.send_offset("readers", "ledger", 5) is E.NONE
    scene.until_state("CompleteAbort")
    assert zombie.commit_offset("readers", "ledger", 6) is E.INVALID_PRODUCER_EPOCH
    assert scene.offset("readers", "ledger", stable=True) == (-1, E.NONE)


@both_protocols
def test_scenario_4_offsets_that_could_not_be_written_are_not_in_memory_either(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer(protocol=protocol)
    refusing = refuse_appends(monkeypatch, CONSUMER_OFFSETS)
    assert producer.send_offset("readers", "ledger", 5) is not E.NONE
    assert scene.offset("readers", "ledger", stable=True) == (-1, E.NONE)
    refusing[0] = False
    assert producer.end(True) is E.NONE
    assert scene.offset("readers", "ledger") == (-1, E.NONE)
    scene = stage.crash(scene)
    assert scene.offset("readers", "ledger") == (-1, E.NONE)


@both_protocols
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_scenario_15_offsets_are_visible_when_the_commit_is_acknowledged(
    stage: Stage, protocol: int, durability: str
) -> None:
    scene = stage.start(semel_durability=durability)
    scene.raw.create("ledger")
    producer = scene.producer(protocol=protocol)
    for offset in range(1, 6):
        assert producer.send_offset("readers", "ledger", offset) is E.NONE
        assert scene.offset("readers", "ledger") == (offset - 1 or -1, E.NONE)
        assert scene.offset("readers", "ledger", stable=True) == (-1, E.UNSTABLE_OFFSET_COMMIT)
        assert producer.end(True) is E.NONE
        assert scene.offset("readers", "ledger", stable=True) == (offset, E.NONE)
        until(lambda: scene.state() == "CompleteCommit", what="the markers")
    scene = stage.crash(scene)
    assert scene.offset("readers", "ledger", stable=True) == (5, E.NONE)


@both_protocols
@pytest.mark.parametrize("after", ["nothing", "restart", "crash"])
def test_scenario_45_unstable_offsets_of_a_producer_that_is_gone_clear_by_timeout(
    stage: Stage, protocol: int, after: str
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    first = scene.producer("first", protocol=protocol)
    assert first.send_offset("readers", "ledger", 3) is E.NONE
    assert first.end(True) is E.NONE
    gone = scene.producer(protocol=protocol, timeout_ms=600)
    assert gone.send_offset("readers", "ledger", 9) is E.NONE
    assert scene.offset("readers", "ledger", stable=True)[1] is E.UNSTABLE_OFFSET_COMMIT
    if after != "nothing":
        scene = getattr(stage, after)(scene)
    settled = until(
        lambda: (found := scene.offset("readers", "ledger", stable=True))[1] is E.NONE and found,
        within_s=4,
        what="the offset to be stable",
    )
    assert settled == (3, E.NONE)
    scene.until_state("CompleteAbort")
