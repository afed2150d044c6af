"""`semel.durability=fsync` in a cluster: committed means on the disk of every in-sync replica (R10)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from semel.broker import server
from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from semel.log.files import Files
from semel.simulation.zookeeper.on_a_socket import ZooKeeperOnASocket
from semel.wire.messages.admin import CreateTopicsRequest
from semel.wire.messages.metadata import MetadataRequest
from tests.broker.raw import Raw, batch, produce_request
from tests.cluster.records import Writer, check, create, partitions_of
from tests.support.cluster import running_cluster
from tests.support.processes import free_port
from tests.support.waiting import until


class Disk(Files):
    """Its fsyncs of the topic wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.let_go.set()
        self.waits = 0
        self.fails = False

    def sync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if "/held-" in path and path.endswith(".log"):
            self.waits += 1
            assert self.let_go.wait(120)
            self.waits -= 1
            if self.fails:
                raise OSError("the disk is broken")
        super().sync(descriptor)


class Brokers:
    """Three brokers in this process, each with a disk of its own, and the topic `held` with three replicas."""

    def __init__(self, disks: dict[int, Disk], brokers: dict[int, Broker]) -> None:
        self.disks, self.brokers = disks, brokers
        rows = CreateTopicsRequest.CreatableTopic(name="held", num_partitions=1, replication_factor=3)
        with Raw(brokers[1]) as raw:
            code = raw.ask(CreateTopicsRequest(topics=[rows], timeout_ms=30_000), 5).topics[0].error_code
            assert code == ErrorCode.NONE
        until(lambda: all(len(self.row(at).isr_nodes) == 3 for at in brokers), within_s=60, what="all to be in sync")
        self.leader = self.row(1).leader_id
        self.followers = [number for number in brokers if number != self.leader]

    def row(self, at: int):  # type: ignore[no-untyped-def]
        with Raw(self.brokers[at]) as raw:
            asked = [MetadataRequest.MetadataRequestTopic(name="held")]
            found = raw.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False), 9).topics[0].partitions
            return found[0] if found else type("Nothing", (), {"isr_nodes": (), "leader_id": -1})


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    disks = {number: Disk() for number in (1, 2, 3)}
    with pytest.MonkeyPatch.context() as patch, ZooKeeperOnASocket() as zookeeper, ExitStack() as stack:
        running = {}
        for number, disk in disks.items():
            patch.setattr(server, "Files", lambda _threads, disk=disk: disk)
            settings = {
                "semel.durability": "fsync",
                "node.id": number,
                "zookeeper.connect": zookeeper.connect,
                "min.insync.replicas": 2,
                "replica.lag.time.max.ms": 600_000,
            }
            directory: Path = tmp_path_factory.mktemp(f"broker-{number}")
            listen = f"127.0.0.1:{free_port()}"
            running[number] = stack.enter_context(Broker(directory, listen=listen, settings=settings))
        try:
            yield Brokers(disks, running)
        finally:
            for disk in disks.values():
                disk.let_go.set()


def test_r10_nothing_is_committed_before_it_is_on_every_disk(brokers: Brokers) -> None:
    with Raw(brokers.brokers[brokers.leader]) as writer, Raw(brokers.brokers[brokers.leader]) as reader:
        for held in (brokers.leader, *brokers.followers):
            before = len(reader.values("held"))
            disk = brokers.disks[held]
            disk.let_go.clear()
            request = produce_request("held", batch(b"%d" % held), acks=-1)
            request.timeout_ms = 60_000
            sent = writer.send(request, 12)
            until(lambda disk=disk: disk.waits == 1, within_s=30, what="the fsync to begin")
            for number, broker in brokers.brokers.items():
                if number != held:
                    # Those whose disks work have it, and it is not enough.
                    until(
                        lambda broker=broker, end=before + 1: _durable_end(broker) >= end,
                        within_s=30,
                        what=f"broker {number} to have it on disk",
                    )
            assert len(reader.values("held")) == before, f"shown before it was on the disk of broker {held}"
            disk.let_go.set()
            answer = writer.receive(sent).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, before)
            assert len(reader.values("held")) == before + 1


def _durable_end(broker: Broker) -> int:
    log = broker.server.topics.topics["held"].partitions[0].own_log
    return log.flusher.recovery_point


def test_acks_1_waits_for_the_leaders_disk_alone(brokers: Brokers) -> None:
    with Raw(brokers.brokers[brokers.leader]) as writer:
        disk = brokers.disks[brokers.leader]
        disk.let_go.clear()
        sent = writer.send(produce_request("held", batch(b"one"), acks=1), 12)
        until(lambda: disk.waits == 1, within_s=30, what="the fsync to begin")
        disk.let_go.set()
        assert writer.receive(sent).responses[0].partition_responses[0].error_code == ErrorCode.NONE


def test_e4_is_not_needed_what_was_acknowledged_is_on_every_disk() -> None:
    """The machines of all brokers lose their power: with fsync they lead again, and nothing is lost."""
    with running_cluster(3, semel_durability="fsync", min_insync_replicas=2) as cluster:
        create(cluster, "power", 1)
        writer = Writer(cluster, "power", 1)
        writer.write(200)
        for broker in cluster.brokers.values():
            broker.kill9()
        for broker in cluster.brokers.values():
            (broker.directory / ".semel_boot_id").write_text("another boot\nfsync\n")
            broker.launch()
        for broker in cluster.brokers.values():
            broker.wait()
        until(
            lambda: all(partitions_of(cluster, "power", at)[0].leader_id > 0 for at in cluster.brokers),
            within_s=60,
            what="somebody to lead",
        )
        writer.write(50)
        check(cluster, writer)
