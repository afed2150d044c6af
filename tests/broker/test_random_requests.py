"""Whatever a well-formed request says, the broker answers it or says why not, and serves the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.machines.groups import offsets
from tests.broker.random_requests import VERSIONS, Conversation

COUNT = 2000


@pytest.mark.parametrize("seed", range(1, 7))
def test_random_requests_leave_a_broker_that_works(seed: int, tmp_path: Path) -> None:
    conversation = Conversation(seed, COUNT)
    conversation.hold(tmp_path)
    assert not conversation.wrong, f"python -m tests.broker.random_requests {seed} {seed} {COUNT}"
    # They come through the first checks, or this would say nothing.
    assert conversation.answered > 0.8 * COUNT > len(VERSIONS)
    assert conversation.codes[0] > 500 and len(conversation.codes) > 25


def test_a_seed_is_the_same_conversation_each_time(tmp_path: Path) -> None:
    traces = []
    for name in "ab":
        conversation = Conversation(5, 500)
        (tmp_path / name).mkdir()
        conversation.hold(tmp_path / name)
        traces.append((conversation.trace_hash, conversation.codes))
    assert traces[0] == traces[1]


def test_they_find_a_moment_that_does_not_fit_into_its_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # As it was: an old client that asked to keep its offsets for 2^63-1 ms was an internal error.
    monkeypatch.setattr(offsets, "_LAST_MS", 2**70)
    for seed in range(1, 40):
        conversation = Conversation(seed, COUNT)
        (tmp_path / str(seed)).mkdir()
        conversation.hold(tmp_path / str(seed))
        if conversation.wrong:
            assert any("OffsetCommit" in line for line in conversation.wrong), conversation.wrong
            return
    pytest.fail("no seed found it")
