"""Whatever is asked for, the loop turns: the work of one turn is counted beside the largest request of every API.

Time would be flaky, so the broker's turns run on a clock that counts what its thread calls: a turn is 10,000 calls,
and what is done in one piece may come on top of it. Whatever is done for all elements of a request at once shows here,
though these requests have only a fifth of the elements that are allowed.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from semel.broker import dispatch
from semel.broker.embedded import Broker
from semel.broker.handlers import SERVED
from semel.broker.net import turns
from semel.errors import ErrorCode
from semel.wire.apis import ApiKey
from semel.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from semel.wire.messages.features import ApiVersionsRequest
from semel.wire.messages.groups import DescribeGroupsRequest, JoinGroupRequest
from semel.wire.messages.metadata import MetadataRequest
from tests.broker.largest_requests import SMALL, Largest, _create, method_of
from tests.broker.raw import Raw
from tests.support.processes import BrokerProcess
from tests.support.waiting import until

CALLS_IN_A_TURN = 10_000
#: A look at the loop makes fewer calls than this itself.
CALLS_OF_A_LOOK = 50
#: A turn, and on top of it what is done at once: a call for each of the largest request's elements at most.
MOST_CALLS_IN_A_TURN = CALLS_IN_A_TURN + 15_000
#: What is done in one piece, and bounded in another way: one member subscribes to 5,000 names at most, or to a pattern
#: for all topics there are; an answer has 2,000 partitions at most.
MOST_CALLS_AT_ONCE = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 6 * CALLS_IN_A_TURN,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 6 * CALLS_IN_A_TURN,
}


class Work:
    """Counts what the broker's thread calls, in all and between two looks at the loop."""

    def __init__(self, broker: Broker, calls_in_a_turn: int = CALLS_IN_A_TURN) -> None:
        self.calls_in_a_turn = calls_in_a_turn
        self.calls = 0
        self.most = 0
        self._before = 0
        self._stopped = False
        self._loop = broker.server.loop
        broker.server.turns.clock = self.clock
        self.on_the_loop(self._begin)

    def clock(self) -> float:
        return self.calls * turns.TURN_S / self.calls_in_a_turn

    def on_the_loop(self, function: Any) -> None:
        async def called() -> None:
            function()

        asyncio.run_coroutine_threadsafe(called(), self._loop).result()

    def _begin(self) -> None:
        sys.setprofile(self._called)
        self._loop.call_soon(self._turned)

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" or event == "c_call":
            self.calls += 1

    def _turned(self) -> None:
        done = self.calls - self._before
        self.most = max(self.most, done)
        self._before = self.calls
        if self._stopped:
            return
        # While there is work, at every turn: what several turns did between two looks is not the work of one.
        if done > CALLS_OF_A_LOOK:
            self._loop.call_soon(self._turned)
        else:
            self._loop.call_later(0.001, self._turned)

    def most_in_a_turn(self) -> int:
        """Since this was last asked."""
        found = 0

        def take() -> None:
            nonlocal found
            self._turned()
            found, self.most = self.most, 0

        self.on_the_loop(take)
        return found

    def stop(self) -> None:
        self._stopped = True
        self.on_the_loop(lambda: sys.setprofile(None))


@pytest.fixture(scope="module")
def sent_to() -> Iterator[tuple[Largest, Work]]:
    with Broker(settings={"node.id": 1, "auto.create.topics.enable": "true"}) as broker, Raw(broker) as raw:
        largest = Largest(raw, SMALL)
        largest.prepare()
        work = Work(broker)
        yield largest, work
        work.stop()


def in_order(key: ApiKey) -> tuple[bool, int]:
    from tests.broker.largest_requests import FIRST

    return key not in FIRST, FIRST.index(key) if key in FIRST else int(key)


@pytest.mark.parametrize("key", sorted(SERVED, key=in_order), ids=lambda key: method_of(key))
def test_no_turn_of_the_loop_does_more_than_its_share(sent_to: tuple[Largest, Work], key: ApiKey) -> None:
    largest, work = sent_to
    for message, version in getattr(largest, method_of(key))():
        frame, _ = largest.raw._frame(message, version)
        work.most_in_a_turn()
        largest.raw.socket.sendall(frame)
        assert largest.raw.receive_frame(), "it is legal, so it is answered"
        assert work.most_in_a_turn() < MOST_CALLS_AT_ONCE.get(key, MOST_CALLS_IN_A_TURN)


def test_requests_that_arrive_together_share_turns_with_everybody(sent_to: tuple[Largest, Work]) -> None:
    largest, work = sent_to
    count = 2000
    frames = [largest.raw._frame(ApiVersionsRequest(), 2)[0] for _ in range(count)]
    work.most_in_a_turn()
    sender = threading.Thread(target=largest.raw.socket.sendall, args=(b"".join(frames),))
    sender.start()
    correlation_ids = [struct.unpack_from(">i", largest.raw.receive_frame())[0] for _ in range(count)]
    sender.join()
    assert correlation_ids == [struct.unpack_from(">i", frame, 8)[0] for frame in frames], "in their order"
    assert work.most_in_a_turn() < MOST_CALLS_IN_A_TURN


def test_very_long_names_are_neither_decoded_nor_encoded_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    large: set[str] = set()
    decoded, encoded = dispatch.decode_from, dispatch.response_frame

    def decode_from(message: Any, version: int, frame: memoryview, *rest: Any) -> Any:
        if len(frame) > dispatch.DECODED_AT_ONCE_BYTES:
            large.add("decoded")
        return decoded(message, version, frame, *rest)

    def response_frame(*arguments: Any) -> Any:
        buffers = encoded(*arguments)
        if threading.current_thread().name == "semel-broker" and sum(map(len, buffers)) > 1_000_000:
            large.add("encoded")
        return buffers

    monkeypatch.setattr(dispatch, "decode_from", decode_from)
    monkeypatch.setattr(dispatch, "response_frame", response_frame)
    with Broker() as broker, Raw(broker) as raw:
        names = [f"{number}" + "x" * 20_000 for number in range(100)]
        answer = raw.ask(DescribeGroupsRequest(groups=names))
        assert [group.group_id for group in answer.groups] == names
    assert large == set()


def test_what_is_done_periodically_for_every_partition_is_done_in_turns() -> None:
    """Few partitions are many where a turn has 200 calls."""
    sweeps = ("_retain", "_compact_all", "_expire_producers", "_flush_what_waited")
    with Broker(settings={"log.cleanup.policy": "compact"}) as broker, Raw(broker) as raw:
        raw.ask(_create(iter(["many"]), 200))
        partitions = broker.server.topics.get("many").partitions
        until(lambda: all(partition.open_log is not None for partition in partitions), what="the logs to be opened")
        work = Work(broker, 200)
        for sweep in sweeps:
            before, put_off = work.calls, broker.server.turns.put_off
            broker.call(getattr(broker.server._background, sweep)())
            assert work.calls > before + 1000, "every partition was looked at"
            assert broker.server.turns.put_off > put_off + 3, f"{sweep} gives up the thread in between"
        before = work.calls
        broker.call(broker.server._background._checkpoint())
        assert 200 < work.calls - before < 200 * 10, "in one turn, because it has little to do for each partition"
        work.stop()


# What is too large


def metadata_of(count: int) -> MetadataRequest:
    row = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(topics=[row(name=f"t{number}") for number in range(count)], allow_auto_topic_creation=False)


def test_a_request_with_more_elements_than_allowed_closes_its_connection_and_says_which_setting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "semel")
    with Broker(settings={"semel.request.max.elements": 5000}) as broker, Raw(broker) as raw, Raw(broker) as other:
        assert len(raw.ask(metadata_of(5000), 12).topics) == 5000
        raw.send(metadata_of(5001), 12)
        assert raw.is_closed()
        assert "semel.request.max.elements" in caplog.text
        assert "Metadata with more than 5000 elements" in caplog.text
        assert other.ask(metadata_of(1), 12).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_member_names_so_many_protocols_and_topics_and_no_more(raw: Raw, topic: str) -> None:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol
    for count, code in ((1001, ErrorCode.INCONSISTENT_GROUP_PROTOCOL), (1000, ErrorCode.MEMBER_ID_REQUIRED)):
        protocols = [protocol(name=f"p{number}", metadata=b"") for number in range(count)]
        join = JoinGroupRequest(
            group_id=topic, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="",
            protocol_type="consumer", protocols=protocols,
        )
        assert raw.ask(join, 5).error_code == code
    for count, code in ((5001, ErrorCode.INVALID_REQUEST), (5000, ErrorCode.NONE)):
        beat = ConsumerGroupHeartbeatRequest(
            group_id=f"{topic}-consumers", member_id="m", member_epoch=0, rebalance_timeout_ms=10_000,
            subscribed_topic_names=[f"t{number}" for number in range(count)], topic_partitions=[],
        )
        assert raw.ask(beat).error_code == code


def test_a_stop_is_heard_while_thousands_of_topics_are_created(tmp_path: Path) -> None:
    row = MetadataRequest.MetadataRequestTopic
    asked = MetadataRequest(topics=[row(name=f"t{number}") for number in range(4000)])
    with (
        BrokerProcess(tmp_path, settings={"auto.create.topics.enable": "true"}) as broker,
        Raw(broker.bootstrap_servers) as raw,
    ):
        raw.send(asked, 12)
        until(lambda: (tmp_path / ".metadata" / "topics").exists(), what="topics to be written down")
        assert broker.stop() == 0
    with BrokerProcess(tmp_path) as broker, Raw(broker.bootstrap_servers) as raw:
        found = raw.ask(MetadataRequest(topics=None), 12).topics
        assert len(found) == 4000, "what was written down is there, all of it"
