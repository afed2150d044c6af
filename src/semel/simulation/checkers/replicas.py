"""A cluster's replicas: the invariants F2 to F4 while everything runs, and F6 at rest.

F1, that nothing acknowledged is lost, is seen by the judge of the history. F5, that a stale coordinator's markers are
refused, is seen in the files: coordinator epochs never fall, and the partitions of a transaction agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from operator import itemgetter
from typing import Any
from zlib import crc32

from semel.broker.replication.partition import ReplicatedPartition
from semel.broker.topics.topic import Topic
from semel.machines.replication.values import PartitionState
from semel.machines.znodes.values import TopicAssignment, decode_state
from semel.records.batch import Record, read_records, split
from semel.simulation.checkers import AT_REST, WHILE_RUNNING
from semel.simulation.checkers.watching import open_logs
from semel.simulation.disk import File
from semel.simulation.play import Play, registers
from semel.simulation.world import DATA, BrokerNode
from semel.simulation.zookeeper.tree import Created, DataSet, Deleted

#: How often leaders and logs are looked at, in virtual seconds.
INTERVAL_S = 0.25
#: How long after the rest began everybody is in sync and equal, in virtual seconds.
WITHIN_S = 60.0
#: Where a batch has its length and its base offset, and how long it is beyond its length.
_OFFSET, _LENGTH, _BEFORE_LENGTH = slice(0, 8), slice(8, 12), 12
_LAST_DELTA = slice(23, 27)
#: The key of a marker that commits.
_COMMIT = b"\0\0\0\1"


def _is_compacted(topic: Topic) -> bool:
    return "compact" in topic.values["cleanup.policy"]


def _log_files(broker: BrokerNode, directory: str) -> list[File]:
    """The log files of a partition, in the order of their offsets."""
    found = [(path, file) for path, file in broker.machine.disk.files(directory) if path.endswith(".log")]
    return [file for _, file in sorted(found, key=lambda one: one[0])]


def _batches(data: bytes | bytearray, position: int = 0) -> Iterator[tuple[int, int, int]]:
    """(where it begins, where it ends, the offset after it) of each whole batch."""
    while position + _BEFORE_LENGTH <= len(data):
        end = position + _BEFORE_LENGTH + int.from_bytes(data[position:][_LENGTH], "big")
        if end > len(data):
            return
        header = data[position : position + 27]
        yield position, end, int.from_bytes(header[_OFFSET], "big") + int.from_bytes(header[_LAST_DELTA], "big") + 1
        position = end


class _Ledger:
    """What was committed in each partition: F2 and F3 follow if every replica that knows it to be committed has it.

    Each replica's bytes are read once, when its high watermark has passed them.
    """

    def __init__(self, play: Play) -> None:
        self._play = play
        #: By partition: where a batch begins -> its checksum, and who had it first.
        self._committed: dict[Any, dict[int, tuple[int, str]]] = {}
        #: How far a file was read, by its log.
        self._read: dict[Any, dict[int, int]] = {}

    def look(self) -> None:
        for broker, partition, log in open_logs(self._play):
            topic = partition.topic
            if _is_compacted(topic):
                continue
            known = self._committed.setdefault((topic.topic_id, partition.index), {})
            read = self._read.setdefault(log, {})
            for file in _log_files(broker, f"{DATA}/{topic.name}-{partition.index}"):
                for begin, end, next_offset in _batches(file.data, read.get(file.number, 0)):
                    if next_offset > log.high_watermark:
                        break
                    read[file.number] = end
                    batch = bytes(file.data[begin:end])
                    offset, found = int.from_bytes(batch[_OFFSET], "big"), (crc32(batch), broker.machine.name)
                    first = known.setdefault(offset, found)
                    if first[0] != found[0]:
                        self._play.world.violated(
                            f"F2 {partition}: what is committed at offset {offset} differs on {found[1]} and {first[1]}"
                        )


def _watch_registers(play: Play) -> None:
    """F4 in ZooKeeper: a leader epoch has one leader, and epochs never fall."""
    ensemble = play.world.zookeeper.ensemble
    known: dict[str, PartitionState] = dict(registers(play.world))
    spread = ensemble.on_transaction

    def decided() -> None:
        for change in ensemble._log[-1].changes:
            if not isinstance(change, (Created, DataSet, Deleted)) or not change.path.endswith("/state"):
                continue
            before = known.pop(change.path, None)
            if isinstance(change, Deleted):
                continue
            state = known[change.path] = decode_state(change.data, change.path)
            if before is None or isinstance(change, Created):
                continue
            same = before.leader_epoch == state.leader_epoch
            if state.leader_epoch < before.leader_epoch or (same and state.leader != before.leader):
                play.world.violated(f"F4 {change.path}: from {before} to {state}")
        spread()

    ensemble.on_transaction = decided


async def watch_replicas(play: Play) -> None:
    """F2, F3, F4 while everything runs."""
    if not play.is_cluster:
        return
    _watch_registers(play)
    ledger = _Ledger(play)
    leaders: dict[Any, tuple[str, int]] = {}
    while True:
        for broker, partition, _ in open_logs(play):
            if isinstance(partition, ReplicatedPartition) and partition.is_served:
                assert broker.process is not None
                who = broker.machine.name, broker.process.number
                key = partition.topic.topic_id, partition.index, partition.leader_epoch
                if leaders.setdefault(key, who) != who:
                    play.world.violated(
                        f"F4 {partition}: {who[0]} and {leaders[key][0]} lead under epoch {partition.leader_epoch}"
                    )
        ledger.look()
        await asyncio.sleep(INTERVAL_S)


# At rest


def _out_of_sync(play: Play) -> str | None:
    nodes = play.world.zookeeper.ensemble.newest.nodes
    for path, state in registers(play.world):
        topic, _, number = path.removesuffix("/state").partition("/partitions/")
        assignment = TopicAssignment.decode(nodes[topic].data, topic)
        replicas = assignment.partitions.get(int(number), ())
        if state.leader < 0 or {*state.isr} != {*replicas} or state.elr or assignment.adding or assignment.removing:
            return f"{path} is {state}, its replicas are {replicas}"
    for broker in play.brokers:
        if broker.has_failed:
            return f"{broker.machine.name} has failed"
    return None


def _difference(play: Play) -> str | None:
    """Where replicas differ. Of a compacted topic, which each replica cleans by itself, the last values count."""
    found: dict[tuple[str, bool], dict[str, Any]] = {}
    for broker, partition, _ in open_logs(play):
        if isinstance(partition, ReplicatedPartition) and partition.is_local:
            name = f"{partition.topic.name}-{partition.index}"
            compacted = _is_compacted(partition.topic)
            data = b"".join(bytes(file.data) for file in _log_files(broker, f"{DATA}/{name}"))
            found.setdefault((name, compacted), {})[broker.machine.name] = data
    for (name, compacted), by_broker in found.items():
        contents: dict[str, Any] = {
            who: _last_values(data) if compacted else data for who, data in by_broker.items()
        }
        if compacted and not name.startswith("__"):
            # A replica that lagged for longer than delete.retention.ms never saw the deletion, as in Kafka.
            everywhere = set.intersection(*(set(values) for values in contents.values()))
            contents = {who: {key: values[key] for key in everywhere} for who, values in contents.items()}
        if any(content != contents[min(contents)] for content in contents.values()):
            sizes = ", ".join(f"{who} {len(by_broker[who])} bytes" for who in sorted(contents))
            return f"{name} differs: {sizes}"
    return None


def _last_values(data: bytes) -> dict[bytes | None, tuple[int, bytes | None]]:
    """The last committed value of each key, and its offset. What was deleted may be there or not."""
    last: dict[bytes | None, tuple[int, bytes | None]] = {}
    pending: dict[int, list[Record]] = {}
    for batch in split(data):
        records = list(read_records(batch))
        if batch.is_control:
            ended = pending.pop(batch.producer_id, [])
            records = ended if records and records[0].key == _COMMIT else []
        elif batch.is_transactional:
            pending.setdefault(batch.producer_id, []).extend(records)
            continue
        for record in records:
            last[record.key] = max(last.get(record.key, (-1, None)), (record.offset, record.value), key=itemgetter(0))
    return {key: found for key, found in last.items() if found[1] is not None}


async def check_replicas(play: Play) -> None:
    """Everybody is in sync again, and the replicas are equal (F6)."""
    if not play.is_cluster:
        return
    what = None
    for _ in range(int(WITHIN_S)):
        what = _out_of_sync(play)
        what = f"liveness: {what}" if what is not None else None
        if what is None:
            difference = _difference(play)
            what = None if difference is None else f"F6 {difference}"
        if what is None:
            return
        await asyncio.sleep(1)
    play.world.violated(f"{what}, {WITHIN_S:g} s after everything healed and came to rest")


WHILE_RUNNING["replicas"] = watch_replicas
AT_REST["replicas"] = check_replicas
