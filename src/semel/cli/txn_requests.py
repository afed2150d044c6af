"""The requests of `semel txn`: views of a transaction, and ways to end it (by its coordinator, or by a marker)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from semel.cli.txn_diagnosis import CoordinatorView, Finding, PartitionView, Verdict, judge
from semel.cli.whole_metadata import leaderships, live_brokers, whole_metadata
from semel.client.blocking.cluster import BlockingCluster
from semel.client.cluster.cluster import Coordinator, Leader
from semel.client.cluster.response_errors import check
from semel.errors import ErrorCode, KafkaError, UnsupportedVersion, error_for
from semel.machines.security.access import Operation, PatternType, Permission, ResourceType
from semel.machines.transactions.states import TransactionState
from semel.machines.values import TopicPartition
from semel.wire.messages.fetch import ListOffsetsRequest
from semel.wire.messages.security import DescribeAclsRequest
from semel.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
)

#: Where coordinators keep their transactions.
TRANSACTION_STATE = "__transaction_state"
LATEST = -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
#: The timeout of a transactional id that is fenced here: the shortest one, which every broker allows. Its next producer
#: sets its own.
FENCING_TIMEOUT_MS = 1
#: How long to watch a producer that seems silent, to see whether it writes.
LOOK_AGAIN_S = 1.0

#: Partitions that could not be read, and why.
Unreadable = dict[TopicPartition, str]


def chosen_partitions(cluster: BlockingCluster, places: Sequence[str]) -> list[TopicPartition]:
    """The partitions of these topics (`ledger`) and partitions (`ledger-0`), or all partitions."""
    response = whole_metadata(cluster)
    known = {
        topic.name: [
            TopicPartition(topic.name, number) for number in sorted(p.partition_index for p in topic.partitions)
        ]
        for topic in sorted(response.topics, key=lambda topic: topic.name or "")
    }
    if not places:
        return [partition for partitions in known.values() for partition in partitions]
    chosen: dict[TopicPartition, None] = {}
    for place in places:
        name, _, number = place.rpartition("-")
        if place in known:
            chosen.update(dict.fromkeys(known[place]))
        elif number.isdecimal() and TopicPartition(name, int(number)) in known.get(name, ()):
            chosen[TopicPartition(name, int(number))] = None
        else:
            raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic or partition {place!r}")
    return list(chosen)


def list_transactional_ids(
    cluster: BlockingCluster, request: ListTransactionsRequest
) -> list[ListTransactionsResponse]:
    """The response of every broker: each knows the transactional ids that it coordinates."""
    cluster.connect()
    answers: list[ListTransactionsResponse] = cluster.request_all(
        [(node_id, request) for node_id in sorted(live_brokers(cluster))]
    )
    for answer in answers:
        check(answer.error_code, "listing transactions")
    return answers


def describe_transaction(cluster: BlockingCluster, transactional_id: str) -> CoordinatorView:
    """The coordinator's view. Raises if the coordinator does not know the id."""
    answer = cluster.request_retrying(
        DescribeTransactionsRequest(transactional_ids=[transactional_id]),
        to=Coordinator("transaction", transactional_id),
    ).transaction_states[0]
    check(answer.error_code, f"describing {transactional_id!r}")
    return CoordinatorView(
        transactional_id=transactional_id,
        state=answer.transaction_state,
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
        timeout_ms=answer.transaction_timeout_ms,
        start_ms=answer.transaction_start_time_ms,
        partitions=frozenset(
            TopicPartition(topic.topic, partition) for topic in answer.topics for partition in topic.partitions
        ),
    )


def coordinated_by_producer_id(cluster: BlockingCluster, producer_ids: set[int]) -> dict[int, CoordinatorView]:
    """The coordinators' views of the transactional ids that have these producer ids."""
    if not producer_ids:
        return {}
    request = ListTransactionsRequest(producer_id_filters=sorted(producer_ids))
    return {
        int(state.producer_id): describe_transaction(cluster, state.transactional_id)
        for answer in list_transactional_ids(cluster, request)
        for state in answer.transaction_states
    }


def open_in(
    cluster: BlockingCluster, partitions: Sequence[TopicPartition], unreadable: Unreadable | None = None
) -> dict[TopicPartition, list[PartitionView]]:
    """The partitions' views: their open transactions, oldest first. A partition without any is left out.

    A partition that its broker cannot read is put into `unreadable`, with the reason.
    """
    by_leader: dict[int, dict[str, list[int]]] = {}
    for partition in partitions:
        leader = cluster.leader(partition.topic, partition.partition)
        by_leader.setdefault(leader, {}).setdefault(partition.topic, []).append(partition.partition)
    row = DescribeProducersRequest.TopicRequest
    requests = [
        (
            leader,
            DescribeProducersRequest(
                topics=[row(name=topic, partition_indexes=numbers) for topic, numbers in topics.items()]
            ),
        )
        for leader, topics in by_leader.items()
    ]
    found: dict[TopicPartition, list[PartitionView]] = {}
    for leader, request in requests:
        for topic in cluster.request(leader, request).topics:
            for described_partition in topic.partitions:
                partition = TopicPartition(topic.name, described_partition.partition_index)
                if unreadable is not None and described_partition.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                    unreadable[partition] = described_partition.error_message or ErrorCode.KAFKA_STORAGE_ERROR.meaning
                    continue
                what = f"asking {partition} for its producers"
                check(described_partition.error_code, what, described_partition.error_message)
                if opened := _open_of(described_partition.active_producers):
                    found[partition] = opened
    return found


def _open_of(producers: Iterable[DescribeProducersResponse.ProducerState]) -> list[PartitionView]:
    opened = [
        PartitionView(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            first_offset=producer.current_txn_start_offset,
            last_sequence=producer.last_sequence,
            last_timestamp_ms=producer.last_timestamp,
            coordinator_epoch=producer.coordinator_epoch,
        )
        for producer in producers
        if producer.current_txn_start_offset >= 0
    ]
    return sorted(opened, key=lambda each: each.first_offset)


def end_offset(cluster: BlockingCluster, partition: TopicPartition, isolation_level: int) -> int:
    """The high watermark; with READ_COMMITTED the last stable offset."""
    row = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition.partition, timestamp=LATEST)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=partition.topic, partitions=[row])],
    )
    leader = Leader(partition.topic, partition.partition)
    answer = cluster.request_retrying(request, to=leader).topics[0].partitions[0]
    check(answer.error_code, f"asking {partition} for its offsets")
    return int(answer.offset)


def findings(
    cluster: BlockingCluster,
    partitions: Sequence[TopicPartition],
    now_ms: int,
    unreadable: Unreadable | None = None,
) -> list[Finding]:
    """A finding for every transaction that is open in these partitions."""
    led = leaderships(whole_metadata(cluster))
    for partition in partitions:
        if led.get(partition) is None and unreadable is not None:
            unreadable[partition] = "nobody leads it; `semel cluster status` says what to do"
    opened = open_in(cluster, [each for each in partitions if led.get(each) is not None], unreadable)
    owners = coordinated_by_producer_id(cluster, {each.producer_id for found in opened.values() for each in found})
    # Who was not found may be known to a coordinator that is away, or that moved while they were asked.
    away = coordinators_away(led, leaderships(whole_metadata(cluster)))
    # Ask the partitions once more: a transaction may have ended while the coordinators were asked.
    still_open = open_in(cluster, list(opened))
    everywhere = _in_all_partitions(cluster, still_open, owners.values(), led)
    ends = {
        partition: (end_offset(cluster, partition, READ_COMMITTED), end_offset(cluster, partition, READ_UNCOMMITTED))
        for partition in still_open
    }

    def judge_all(writing: set[int]) -> list[Finding]:
        newest = _newest_timestamps(everywhere)
        return [
            judge(
                partition,
                *ends[partition],
                each,
                owners.get(each.producer_id),
                now_ms,
                newest.get(each.producer_id, -1),
                each.producer_id in writing,
                away,
            )
            for partition, found in still_open.items()
            for each in found
            if any(each.first_offset == before.first_offset for before in opened[partition])
        ]

    judged = judge_all(set())
    if any(finding.verdict is Verdict.SILENT for finding in judged):
        # The timestamps may be those of old records. A producer that is alive writes again.
        _watch()
        later = _in_all_partitions(cluster, {}, owners.values(), led)
        judged = judge_all(_producers_that_wrote(everywhere, later))
    return judged


def coordinators_away(
    before: dict[TopicPartition, tuple[int, int] | None], after: dict[TopicPartition, tuple[int, int] | None]
) -> frozenset[TopicPartition]:
    """The coordinators' partitions that nobody leads, or that got another leader between two looks."""
    return frozenset(
        partition
        for partition, leader in {**before, **after}.items()
        if partition.topic == TRANSACTION_STATE and (leader is None or before.get(partition) != after.get(partition))
    )


def _watch() -> None:
    time.sleep(LOOK_AGAIN_S)


def _in_all_partitions(
    cluster: BlockingCluster,
    known: dict[TopicPartition, list[PartitionView]],
    owners: Iterable[CoordinatorView],
    led: dict[TopicPartition, tuple[int, int] | None],
) -> dict[TopicPartition, list[PartitionView]]:
    """What is open in all partitions of these transactions, not only in those that the user asked about."""
    others = {partition for owner in owners for partition in owner.partitions} - known.keys()
    others = {partition for partition in others if led.get(partition) is not None}
    try:
        return {**known, **(open_in(cluster, sorted(others), {}) if others else {})}
    except KafkaError:
        # A partition that is not there any more, or not now: the question is about the others.
        return known


def _newest_timestamps(opened: dict[TopicPartition, list[PartitionView]]) -> dict[int, int]:
    """For each producer id the newest timestamp that a partition gives."""
    newest: dict[int, int] = {}
    for found in opened.values():
        for each in found:
            newest[each.producer_id] = max(newest.get(each.producer_id, -1), each.last_timestamp_ms)
    return newest


def _producers_that_wrote(
    before: dict[TopicPartition, list[PartitionView]], after: dict[TopicPartition, list[PartitionView]]
) -> set[int]:
    """The producer ids whose last sequence number moved between two looks."""
    seen = {
        (partition, each.producer_id, each.first_offset, each.last_sequence)
        for partition, found in before.items()
        for each in found
    }
    return {
        each.producer_id
        for partition, found in after.items()
        for each in found
        if (partition, each.producer_id, each.first_offset, each.last_sequence) not in seen
    }


def hides_nothing(cluster: BlockingCluster) -> bool:
    """Whether the broker has no access rules. Where it has some, it leaves out of its answers what the user of this
    command may not describe: topics, and transactional ids, whose transactions then look like ones that hang."""
    everything = DescribeAclsRequest(
        resource_type_filter=ResourceType.ANY,
        resource_name_filter=None,
        pattern_type_filter=PatternType.ANY,
        principal_filter=None,
        host_filter=None,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
    try:
        answer = cluster.request_retrying(everything)
    except UnsupportedVersion:
        return True
    return bool(answer.error_code == ErrorCode.SECURITY_DISABLED)


def is_unchanged(cluster: BlockingCluster, finding: Finding, now_ms: int) -> bool:
    """Whether the finding is still true. Checked right before something is done about it."""
    return any(
        (each.opened.producer_id, each.opened.first_offset, each.verdict)
        == (finding.opened.producer_id, finding.opened.first_offset, finding.verdict)
        for each in findings(cluster, [finding.partition], now_ms)
    )


def mend(cluster: BlockingCluster, finding: Finding) -> str:
    """End the transaction in the way that is safe. Returns what was done."""
    if finding.verdict is Verdict.HANGING:
        write_marker(cluster, finding.partition, finding.opened, commit=False)
        return f"wrote the missing abort marker into {finding.partition}"
    assert finding.coordinated is not None
    if finding.verdict is Verdict.COMPLETING:
        commit = finding.coordinated.state == TransactionState.PREPARE_COMMIT.title
        decided = replace(
            finding.opened, producer_epoch=max(finding.opened.producer_epoch, finding.coordinated.producer_epoch)
        )
        write_marker(cluster, finding.partition, decided, commit=commit)
        return f"wrote the {'commit' if commit else 'abort'} that was decided into {finding.partition}"
    transactional_id = finding.coordinated.transactional_id
    fence(cluster, transactional_id)
    return f"aborted the transaction of {transactional_id!r} and fenced its producer"


def fence(cluster: BlockingCluster, transactional_id: str) -> None:
    """Take over the transactional id: its open transaction is aborted, and its producer is fenced."""
    answer = cluster.request_retrying(
        InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=FENCING_TIMEOUT_MS),
        to=Coordinator("transaction", transactional_id),
    )
    check(answer.error_code, f"fencing {transactional_id!r}")


def write_marker(cluster: BlockingCluster, partition: TopicPartition, opened: PartitionView, *, commit: bool) -> None:
    """End a transaction in this partition only, with the coordinator epoch that the partition accepts."""
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=opened.producer_id,
        producer_epoch=opened.producer_epoch,
        transaction_result=commit,
        topics=[
            WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])
        ],
        coordinator_epoch=max(0, opened.coordinator_epoch),
    )
    answer = cluster.request_retrying(
        WriteTxnMarkersRequest(markers=[marker]), to=Leader(partition.topic, partition.partition)
    )
    code = answer.markers[0].topics[0].partitions[0].error_code
    check(ErrorCode.of(code), f"writing a marker into {partition}")
