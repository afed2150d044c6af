"""Names as long as the protocol allows are kept; longer ones are answered with an error of the protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from semel.machines.groups.classic.rebalance import generated_member_id
from semel.wire.messages.admin import CreatePartitionsRequest, ElectLeadersRequest
from semel.wire.messages.configs import AlterClientQuotasRequest, DescribeClientQuotasRequest
from semel.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from semel.wire.messages.groups import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from semel.wire.messages.metadata import FindCoordinatorRequest
from semel.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from tests.broker.raw import Raw

MOST = 32_767
LONG = "x" * 2_000_000


def init(transactional_id: str) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1000)


def join(**fields: Any) -> JoinGroupRequest:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"m")
    return JoinGroupRequest(
        **{
            "group_id": "g",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "protocol_type": "consumer",
            "protocols": [protocol],
            **fields,
        }
    )


TOO_LONG: dict[str, tuple[Any, int]] = {
    "a transactional id": (init(LONG), 4),
    "a transactional id, one byte too long": (init("x" * (MOST + 1)), 4),
    "a transactional id of long characters": (init("\N{EURO SIGN}" * 11_000), 4),
    "a transactional id to end": (EndTxnRequest(transactional_id=LONG), 5),
    "a group of a transaction": (AddOffsetsToTxnRequest(transactional_id="t", group_id=LONG), 4),
    "a group": (join(group_id=LONG), 9),
    "an instance id": (join(group_instance_id=LONG), 9),
    "a member id": (join(member_id=LONG), 9),
    "a type of protocol": (join(protocol_type=LONG), 9),
    "a protocol": (join(protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=LONG)]), 9),
    "a group that is synced": (SyncGroupRequest(group_id=LONG), 5),
    "a group that is alive": (HeartbeatRequest(group_id=LONG), 4),
    "a group of the consumer protocol": (ConsumerGroupHeartbeatRequest(group_id=LONG), 1),
    "a member of the consumer protocol": (ConsumerGroupHeartbeatRequest(group_id="g", member_id=LONG), 1),
    "a rack": (ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", rack_id=LONG), 1),
    "a regular expression": (
        ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", subscribed_topic_regex=LONG),
        1,
    ),
    "a coordinator's key": (FindCoordinatorRequest(key=LONG), 3),
}


@pytest.mark.parametrize(("request_", "version"), TOO_LONG.values(), ids=TOO_LONG)
def test_a_name_that_no_record_can_hold_is_refused_and_the_connection_goes_on(
    raw: Raw, request_: Any, version: int
) -> None:
    assert raw.ask(request_, version).error_code == ErrorCode.INVALID_REQUEST
    assert raw.ask(init("short")).error_code in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS)


def test_the_longest_names_are_kept_over_a_restart(tmp_path: Path) -> None:
    name = "n" * MOST
    row = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=5, committed_metadata="m" * 4096
    )
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[row])
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t")
        assert raw.ask(init(name)).error_code == ErrorCode.NONE
        committed = raw.ask(OffsetCommitRequest(group_id=name, topics=[topic]), 8)
        assert committed.topics[0].partitions[0].error_code == ErrorCode.NONE
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        described = raw.ask(DescribeTransactionsRequest(transactional_ids=[name])).transaction_states[0]
        assert (described.error_code, described.transaction_state) == (ErrorCode.NONE, "Empty")
        groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None)]
        fetched = raw.ask(OffsetFetchRequest(groups=groups), 9).groups[0]
        assert fetched.topics[0].partitions[0].committed_offset == 5


@pytest.mark.parametrize("version", [3, 5, 9])
def test_a_client_with_the_longest_name_joins_a_group(semel_broker: Broker, version: int) -> None:
    with Raw(semel_broker, client_id="c" * MOST) as raw:
        answer = raw.ask(join(), version)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            answer = raw.ask(join(member_id=answer.member_id), version)
        assert answer.error_code == ErrorCode.NONE
        assert answer.member_id.startswith("c" * 255 + "-")
        part = SyncGroupRequest.SyncGroupRequestAssignment(member_id=answer.member_id, assignment=b"all")
        sync = SyncGroupRequest(
            group_id="g", generation_id=answer.generation_id, member_id=answer.member_id, assignments=[part]
        )
        assert raw.ask(sync, 3).error_code == ErrorCode.NONE


def test_a_generated_member_id_is_short_whatever_its_characters_take() -> None:
    unique = "u" * 36
    for name in ("c", "c" * 255, "c" * MOST, "\N{EURO SIGN}" * 10_922, "\N{GRINNING FACE}" * 8191):
        made = generated_member_id(name, unique)
        assert made.endswith(f"-{unique}") and len(made.encode()) <= 255 + 37
        assert name.startswith(made.removesuffix(f"-{unique}"))
    assert generated_member_id("short", unique) == f"short-{unique}"


_LONGEST = "\N{EURO SIGN}" * (MOST // 3)


@pytest.mark.parametrize(
    "request_",
    [
        CreatePartitionsRequest(
            topics=[CreatePartitionsRequest.CreatePartitionsTopic(name=_LONGEST, count=2, assignments=None)]
        ),
        ElectLeadersRequest(topic_partitions=[ElectLeadersRequest.TopicPartitions(topic=_LONGEST, partitions=[0])]),
        AlterClientQuotasRequest(
            entries=[
                AlterClientQuotasRequest.EntryData(
                    entity=[AlterClientQuotasRequest.EntityData(entity_type=_LONGEST, entity_name="n")], ops=[]
                )
            ]
        ),
        DescribeClientQuotasRequest(
            components=[DescribeClientQuotasRequest.ComponentData(entity_type=_LONGEST, match_type=0, match="n")]
        ),
    ],
    ids=lambda request: type(request).__name__,
)
def test_an_explanation_that_repeats_a_long_name_fits_into_the_answer(semel_broker: Broker, request_: Any) -> None:
    with Raw(semel_broker) as raw:
        shown = repr(raw.ask(request_, 0))
        assert "error_message=" in shown
        assert len(shown) < 3 * MOST
