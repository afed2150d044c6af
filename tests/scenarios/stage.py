"""Where a scenario is played: a real broker in this process, a connection without manners, producers that do one step
at a time, and a disk that can be made to fail or to wait."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from semel.broker.coordinators.marker_sender import write_marker
from semel.broker.embedded import Broker
from semel.errors import ErrorCode, Refused
from semel.log.files import Files
from semel.log.partition_log import PartitionLog
from semel.machines.contract import Decision, StateRecord
from semel.machines.values import TopicPartition
from semel.records.batch import Batch, read_records, split
from semel.records.markers import read_marker
from semel.testing import invariants
from semel.wire.messages.fetch import FetchResponse, ListOffsetsRequest
from semel.wire.messages.offsets import OffsetFetchRequest
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from tests.broker.raw import Raw, batch, values_of
from tests.support.waiting import until

T = TypeVar("T")

#: Few partitions of the broker's own, so that a broker starts and restarts quickly.
SMALL = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2}


class Disk(Files):
    """The disk as it is, unless the scenario says which calls fail and which wait."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[str, str], bool] = lambda call, path: False
        self.waits: Callable[[str, str], bool] = self.fails
        self.go_on = threading.Event()
        self.waiting = threading.Event()
        self.calls: list[tuple[str, str]] = []
        self._paths: dict[int, str] = {}

    def heal(self) -> None:
        """Nothing fails or waits any more."""
        self.fails = self.waits = lambda call, path: False
        self.go_on.set()

    def _before(self, call: str, path: str) -> None:
        if self.fails(call, path):
            raise OSError(errno.EIO, "input/output error")
        if self.waits(call, path):
            self.waiting.set()
            assert self.go_on.wait(30), f"{call} of {path} was never let go"
        self.calls.append((call, path))

    def open(self, path: str | os.PathLike[str], *, create: bool = False) -> int:
        descriptor = super().open(path, create=create)
        self._paths[descriptor] = os.fspath(path)
        return descriptor

    def duplicate(self, descriptor: int) -> int:
        second = super().duplicate(descriptor)
        self._paths[second] = self._paths.get(descriptor, "")
        return second

    def write_at(self, descriptor: int, data: Any, position: int) -> None:
        self._before("write", self._paths.get(descriptor, ""))
        super().write_at(descriptor, data, position)

    def write_parts_at(self, descriptor: int, parts: Any, position: int) -> None:
        self._before("write", self._paths.get(descriptor, ""))
        super().write_parts_at(descriptor, parts, position)

    def sync(self, descriptor: int) -> None:
        self._before("sync", self._paths.get(descriptor, ""))
        super().sync(descriptor)

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        self._before("rename", os.fspath(target))
        super().rename(source, target)


class Stage:
    """The brokers of one scenario, one after the other or side by side; all of them end with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._scenes: list[Scene] = []

    def start(self, data: Path | None = None, *, disk: Disk | None = None, **settings: object) -> Scene:
        """A broker; settings by Kafka's names with underscores for dots."""
        named = {name.replace("_", "."): value for name, value in settings.items()}
        data = data or self.new_directory()
        broker = Broker(data, settings={**SMALL, **named})
        if disk is not None:
            broker.server.files = disk
        scene = Scene(broker, settings, disk)
        self._scenes.append(scene)
        return scene

    def new_directory(self) -> Path:
        return self.directory / f"data-{len(self._scenes)}"

    def restart(self, scene: Scene) -> Scene:
        """The same data after a clean stop."""
        scene.close()
        return self.start(scene.broker.data_dir, **scene.options)

    def crash(self, scene: Scene, *, disk: Disk | None = None) -> Scene:
        """What a kill -9 at this moment leaves, taken over by the next broker. The old one goes on living alone."""
        data = self.new_directory()
        ignore = shutil.ignore_patterns(".lock")

        def copy() -> None:
            # Nothing may rename files while they are copied: a copy is not made in one moment, as a kill is.
            scene.broker.server.files.drain()
            shutil.copytree(scene.broker.data_dir, data, ignore=ignore)

        scene.on_loop(copy)
        return self.start(data, disk=disk, **scene.options)

    def close(self) -> None:
        for scene in self._scenes:
            scene.close()

    def judge(self) -> None:
        """Whatever the scenario was about, the files that are left keep every promise."""
        for scene in self._scenes:
            if scene.left_in_order:
                invariants.check(scene.broker.data_dir, killed=True)


class Scene:
    """One running broker and a connection to it."""

    def __init__(self, broker: Broker, options: dict[str, Any], disk: Disk | None) -> None:
        self.broker = broker
        self.options = options
        self._disk = disk
        broker.start()
        self.raw = Raw(broker)
        #: False where the scenario itself leaves files that only the next start puts right.
        self.left_in_order = True
        self._closed = False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._disk is not None:
                self._disk.heal()
            self.raw.socket.close()
            self.broker.stop()

    def on_loop(self, work: Callable[[], T]) -> T:
        """Run something between two requests, on the thread that owns everything."""

        async def run() -> T:
            return work()

        result: T = self.broker.call(run())
        return result

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        return self.broker.server.topics.partition(topic, partition).log

    def producer(self, transactional_id: str = "payments", **options: Any) -> Steps:
        steps = Steps(self, transactional_id, **options)
        assert steps.init() is ErrorCode.NONE
        return steps

    def stored(self, topic: str, partition: int = 0) -> list[Batch]:
        """Every batch of a partition, whatever a reader may see."""
        log = self.log(topic, partition)
        return self.on_loop(
            lambda: [Batch.parse(bytes(found.data)) for segment in log.segments for found in segment.batches()]
        )

    def markers(self, topic: str, partition: int = 0) -> list[tuple[int, int, bool]]:
        """(producer id, epoch, commit) of every marker."""
        return [
            (found.producer_id, found.producer_epoch, read_marker(found).commit)
            for found in self.stored(topic, partition)
            if found.is_control
        ]

    def committed(self, topic: str, partition: int = 0) -> list[bytes]:
        """What a reader of committed records ends up with, filtered as a client filters."""
        return [value for data in self.read(topic, partition, 1) for value in committed_values(data)]

    def uncommitted(self, topic: str, partition: int = 0) -> list[bytes]:
        return [value or b"" for data in self.read(topic, partition, 0) for value in values_of(data)]

    def read(self, topic: str, partition: int, isolation_level: int) -> Iterator[FetchResponse.PartitionData]:
        """Fetch after fetch, from the first offset to the last that may be read."""
        offset = 0
        while True:
            data = self.raw.fetch(topic, offset, partition=partition, isolation_level=isolation_level, max_wait_ms=0)
            yield data
            batches = split(data.records or b"")
            if not batches:
                return
            offset = batches[-1].next_offset

    def ends(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """(last stable offset, high watermark) as ListOffsets gives them."""
        found = []
        for isolation_level in (1, 0):
            row = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=-1)
            asked = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation_level,
                topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[row])],
            )
            found.append(int(self.raw.ask(asked).topics[0].partitions[0].offset))
        return found[0], found[1]

    def state(self, transactional_id: str = "payments") -> str:
        """The coordinator's word on a transactional id, or the name of its refusal."""
        found = self.raw.ask(DescribeTransactionsRequest(transactional_ids=[transactional_id])).transaction_states[0]
        return str(found.transaction_state) if found.error_code == 0 else ErrorCode(found.error_code).name

    def until_state(self, state: str, transactional_id: str = "payments", within_s: float = 10.0) -> None:
        until(lambda: self.state(transactional_id) == state, within_s=within_s, what=f"{transactional_id} {state}")

    def offset(self, group: str, topic: str, *, stable: bool = False) -> tuple[int, ErrorCode]:
        """The committed offset of partition 0."""
        asked = OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=group, topics=[OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
        )
        row = self.raw.ask(OffsetFetchRequest(groups=[asked], require_stable=stable), 9).groups[0].topics[0]
        return row.partitions[0].committed_offset, ErrorCode(row.partitions[0].error_code)

    def mark(
        self,
        producer: tuple[int, int],
        *topics: str,
        commit: bool,
        coordinator_epoch: int = 0,
        transaction_version: int = 2,
    ) -> list[ErrorCode]:
        """Markers as a coordinator elsewhere would have them written; one code per topic."""

        def write(topic: str) -> ErrorCode:
            try:
                write_marker(
                    self.broker.server,
                    TopicPartition(topic, 0),
                    *producer,
                    commit,
                    coordinator_epoch,
                    transaction_version,
                )
            except Refused as refused:
                return refused.code
            return ErrorCode.NONE

        return [self.on_loop(partial(write, topic)) for topic in topics]

    def mark_as_client(
        self,
        producer: tuple[int, int],
        topic: str,
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        transaction_version: int = 0,
    ) -> ErrorCode:
        """A marker by request, as administrators send them."""
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer[0],
            producer_epoch=producer[1],
            transaction_result=commit,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
            topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
        )
        answer = self.raw.ask(WriteTxnMarkersRequest(markers=[marker]), 2)
        return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)

    def place(self, record: StateRecord) -> None:
        """Put a record into the transaction log, as if the coordinator had once decided so."""
        host = self.broker.server.transactions.host

        def write() -> None:
            host.ready(record.partition)
            host.settle(Decision(None, (record,)))

        self.on_loop(write)


class Steps:
    """A transactional producer that does what it is told, also what no client should do."""

    def __init__(self, scene: Scene, transactional_id: str, *, protocol: int = 2, timeout_ms: int = 60_000) -> None:
        self.scene = scene
        self.id = transactional_id
        self.protocol = protocol
        self.timeout_ms = timeout_ms
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}
        self.last_end = EndTxnResponse()

    @property
    def identity(self) -> tuple[int, int]:
        return self.producer_id, self.epoch

    def init(self) -> ErrorCode:
        """Ask for an identity until the coordinator has settled what the last owner left."""

        def once() -> Any:
            answer = self.ask_init()
            return None if answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS else answer

        answer = until(once, within_s=10, what=f"an identity for {self.id}")
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()
        return ErrorCode(answer.error_code)

    def ask_init(self) -> Any:
        """InitProducerId once, whatever the answer is."""
        return self.scene.raw.ask(
            InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=self.timeout_ms)
        )

    def add(self, topic: str, partition: int = 0) -> ErrorCode:
        row = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[partition])
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[row],
        )
        results = self.scene.raw.ask(request, 3).results_by_topic_v3_and_below
        return ErrorCode(results[0].results_by_partition[0].partition_error_code)

    def batch(self, *values: bytes, sequence: int) -> bytes:
        return batch(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )

    def produce(self, topic: str, *values: bytes, sequence: int, partition: int = 0) -> tuple[ErrorCode, int]:
        """Exactly this batch, nothing before and nothing after it: (code, base offset)."""
        answer = self.scene.raw.produce(
            topic,
            self.batch(*values, sequence=sequence),
            transactional_id=self.id,
            version=12 if self.protocol == 2 else 11,
            partition=partition,
        )
        return ErrorCode(answer.error_code), answer.base_offset

    def write(self, topic: str, *values: bytes, partition: int = 0) -> ErrorCode:
        """The next records of the open transaction, as the protocol wants it."""
        sequence = self.sequences.get((topic, partition), 0)
        if self.protocol == 1:
            code = self.add(topic, partition)
            if code is not ErrorCode.NONE:
                return code
        code, _ = self.produce(topic, *values, sequence=sequence, partition=partition)
        if code is ErrorCode.NONE:
            self.sequences[topic, partition] = sequence + len(values)
        return code

    def send_offset(self, group: str, topic: str, offset: int, **member: Any) -> ErrorCode:
        """The group's progress joins the transaction."""
        if self.protocol == 1:
            request = AddOffsetsToTxnRequest(
                transactional_id=self.id, producer_id=self.producer_id, producer_epoch=self.epoch, group_id=group
            )
            code = ErrorCode(self.scene.raw.ask(request, 4).error_code)
            if code is not ErrorCode.NONE:
                return code
        return self.commit_offset(group, topic, offset, **member)

    def commit_offset(self, group: str, topic: str, offset: int, **member: Any) -> ErrorCode:
        row = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=[row])],
            **member,
        )
        answer = self.scene.raw.ask(request, 5 if self.protocol == 2 else 4)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def end(self, commit: bool, *, identity: tuple[int, int] | None = None) -> ErrorCode:
        """EndTxn once; on success the identity the answer gave is the next one."""
        producer_id, epoch = identity or self.identity
        self.last_end = self.scene.raw.ask(
            EndTxnRequest(transactional_id=self.id, producer_id=producer_id, producer_epoch=epoch, committed=commit),
            5 if self.protocol == 2 else 4,
        )
        if self.last_end.error_code == ErrorCode.NONE and identity is None and self.protocol == 2:
            self.producer_id, self.epoch = self.last_end.producer_id, self.last_end.producer_epoch
            self.sequences.clear()
        return ErrorCode(self.last_end.error_code)


def committed_values(data: FetchResponse.PartitionData) -> list[bytes]:
    """The values of a read_committed answer after the filter that every client applies."""
    return [value for _, value in committed_records(data)]


def committed_records(data: FetchResponse.PartitionData) -> list[tuple[int, bytes]]:
    """The same with their offsets."""
    aborted = sorted((row.first_offset, row.producer_id) for row in data.aborted_transactions or ())
    aborting: set[int] = set()
    seen: list[tuple[int, bytes]] = []
    for stored in split(data.records or b""):
        while aborted and aborted[0][0] <= stored.last_offset:
            aborting.add(aborted.pop(0)[1])
        if stored.is_control:
            if not read_marker(stored).commit:
                aborting.discard(stored.producer_id)
        elif not (stored.is_transactional and stored.producer_id in aborting):
            seen += [(record.offset, bytes(record.value or b"")) for record in read_records(stored)]
    return seen


@contextmanager
def in_background(work: Callable[[], object]) -> Iterator[Callable[[], Any]]:
    """Run a request beside the scenario, which waits for its answer at the end at the latest."""
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def answer() -> Any:
        thread.join(30)
        assert not thread.is_alive(), "no answer came"
        if failure:
            raise failure[0]
        return outcome[0]

    yield answer
    answer()
