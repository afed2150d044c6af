"""One run: a cluster on machines of its own, clients at work, fault after fault, and the judgement."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from semel.testing.history import Operation, Poll, judge
from semel.wire.messages.fetch import ListOffsetsRequest
from tests.broker.raw import Raw
from tests.broker.soak import Record, Watcher, Worker
from tests.cluster.jepsen.clients import (
    Client,
    ClusterCopier,
    ClusterWriter,
    GroupMember,
    IdempotentWriter,
    Pipeline,
    resets,
)
from tests.cluster.jepsen.faults import FAULTS, Faults
from tests.cluster.records import check_files
from tests.support.cluster import running_cluster
from tests.support.network import HERE, Network
from tests.support.waiting import until
from tests.support.zookeeper import ZooKeeper

BROKERS, NODES, PARTITIONS = 4, 3, 3
#: plain: idempotent producers. ledger: transactions. source, middle, target: the chain of copiers. spark: the pipeline.
TOPICS = ("plain", "ledger", "source", "middle", "target", "spark")
SETTINGS: dict[str, object] = {
    "default_replication_factor": 3,
    "min_insync_replicas": 2,
    "offsets_topic_replication_factor": 3,
    "offsets_topic_num_partitions": 4,
    "transaction_state_log_replication_factor": 3,
    "transaction_state_log_min_isr": 2,
    "transaction_state_log_num_partitions": 4,
    "replica_lag_time_max_ms": 4000,
    "log_segment_bytes": 200_000,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 1000,
}
SESSION_TIMEOUT_MS = 6000
#: Everybody has to go on within this time after everything has healed.
LATE_S = 5.0
#: What ends a client of Apache Kafka too, in the same place of the protocol (`tests/broker/test_soak.py`).
LAWFUL_ENDS = ("_FENCED", "INVALID_TXN_STATE")


class Run:
    """The cluster, its clients, and what they did."""

    def __init__(self, directory: Path, seed: int, *, spark: bool, cuts: bool) -> None:
        self.directory, self.seed = directory, seed
        self.chance = random.Random(seed)
        self.record = Record()
        self.network = None
        names = [f"b{number}" for number in range(1, BROKERS + 1)] + [f"z{number}" for number in range(1, NODES + 1)]
        if cuts:
            self.network = Network(names)
        machines = self.network.machines if self.network is not None else dict.fromkeys(names, HERE)
        self._stack = ExitStack()
        self.cluster = self._stack.enter_context(
            running_cluster(
                session_timeout_ms=SESSION_TIMEOUT_MS,
                zookeeper=ZooKeeper(machines=[machines[name] for name in names[BROKERS:]]),
                machines=[machines[name] for name in names[:BROKERS]],
                keep_in=directory,
                **SETTINGS,
            )
        )
        self.faults = Faults(self.cluster, self.network, dict.fromkeys(TOPICS, PARTITIONS), seed)
        self.happened: Counter[str] = Counter()
        #: For each client how long it took to go on after a healing, in seconds, with the fault.
        self.waits: list[tuple[float, str, str]] = []
        self._make_topics()
        at = self.cluster.bootstrap_servers
        written = [(topic, number) for topic in ("ledger", "source") for number in range(PARTITIONS)]
        self.writers: list[Worker] = [
            ClusterWriter(f"writer-{number}", at, self.record, seed + number, written) for number in range(2)
        ]
        self.plain = [
            IdempotentWriter(f"plain-{number}", at, self.record, seed + 10 + number, "plain", PARTITIONS)
            for number in range(2)
        ]
        self.stages: list[list[Worker]] = [
            [
                ClusterCopier(f"{source}-copier-{number}", at, self.record, seed - number, source, target, source)
                for number in range(2)
            ]
            for source, target in (("source", "middle"), ("middle", "target"))
        ]
        self.members = [
            GroupMember(f"member-{number}", at, self.record, seed + 20 + number, "plain", "readers")
            for number in range(2)
        ]
        self.places = [(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
        self.watcher = Watcher(at, self.record, self.places)
        self._watching = threading.Event()
        self._watch = threading.Thread(target=self._watch_on, daemon=True)
        self.pipeline = Pipeline(at, directory, "plain", "spark") if spark else None

    def _make_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers})
        for made in admin.create_topics([NewTopic(topic, PARTITIONS, 3) for topic in TOPICS]).values():
            made.result(60)

    def clients(self) -> list[Client]:
        copiers: list[Client] = [each for stage in self.stages for each in stage]  # type: ignore[misc]
        others: list[Client] = [*self.writers, *self.plain]  # type: ignore[list-item]
        return others + copiers

    def start(self) -> None:
        self._watch.start()
        for each in (*self.writers, *self.plain, *self.members, *(one for stage in self.stages for one in stage)):
            each.thread.start()
        for client in self.clients():
            until(lambda c=client: c.steps() or self.record.failures, within_s=120, what=f"{client.name} to begin")
        if self.pipeline is not None:
            until(self.pipeline.steps, within_s=180, what="the pipeline to begin", every_s=0.2)

    def _watch_on(self) -> None:
        try:
            while not self._watching.is_set():
                self.watcher.poll(0.2)
        except BaseException as error:
            self.record.failures.append(error)

    # Faults

    def fire(self, seconds: float, only: list[str]) -> None:
        deadline = time.monotonic() + seconds
        kinds = only or self.faults.kinds()
        bag: list[str] = []
        while time.monotonic() < deadline and not self.record.failures:
            if not bag:
                bag = self.chance.sample(kinds, len(kinds))
            self._one_fault(bag.pop())

    def _one_fault(self, kind: str) -> None:
        fault = FAULTS[kind]
        lasts_s = self.chance.uniform(*fault.seconds)
        begun = time.monotonic()
        where = fault.begin(self.faults)
        threading.Event().wait(lasts_s)  # how long a fault lasts is the random input of this test
        self.faults.heal()
        healed = time.monotonic()
        self.happened[kind] += 1
        slowest, who = self._everybody_goes_on(kind, healed)
        self._nobody_went_back()
        print(
            f"{time.strftime('%H:%M:%S')} {kind} ({where}), {healed - begun:.1f} s; then the slowest was {who}: "
            f"{slowest:.1f} s",
            flush=True,
        )

    def _everybody_goes_on(self, kind: str, healed: float) -> tuple[float, str]:
        """How long it takes until every client has got something done after the healing."""
        before = {client.name: client.steps() for client in self.clients()}
        if self.pipeline is not None:
            before[self.pipeline.name] = self.pipeline.steps()
        waiting: dict[str, Client] = {client.name: client for client in self.clients()}
        if self.pipeline is not None:
            waiting[self.pipeline.name] = self.pipeline
        last = (0.0, "")
        told = False

        def gone_on() -> bool:
            nonlocal last, told
            if not told and time.monotonic() - healed > LATE_S:
                told = True
                doing = ", ".join(f"{name} ({getattr(client, 'doing', '?')})" for name, client in waiting.items())
                print(f"    after {LATE_S:g} s these have not gone on: {doing}", flush=True)
            for name, client in list(waiting.items()):
                if client.steps() > before[name]:
                    del waiting[name]
                    last = (time.monotonic() - healed, name)
                    self.waits.append((*last, kind))
            return not waiting or bool(self.record.failures)

        try:
            until(gone_on, within_s=150, every_s=0.05, what="everybody to go on")
        except AssertionError as error:
            raise AssertionError(f"after {kind} these do not go on: {sorted(waiting)}") from error
        return last

    def _nobody_went_back(self) -> None:
        """A group whose offset was committed goes on from there, whoever coordinates it."""
        commits: dict[tuple[str, int], float] = {}
        for one in (*self.members, *(copier for stage in self.stages for copier in stage)):
            for place, at in list(one.first_commits.items()):  # type: ignore[union-attr]
                commits[place] = min(at, commits.get(place, at))
        unlawful = resets.unlawful(commits)
        assert unlawful == [], "\n".join(unlawful)

    # The end

    def settle(self) -> None:
        """With everything healed the clients end what they have begun, and everything arrives where it must."""
        self._end([*self.writers, *self.plain])
        for stage, (source, target) in zip(self.stages, (("source", "middle"), ("middle", "target")), strict=True):
            until(
                lambda s=source, t=target: self.record.failures or len(self._seen(t)) >= len(self._seen(s)),
                within_s=150,
                what=f"the copiers to copy {source} to {target}",
                every_s=0.2,
            )
            self._end(stage)
        until(
            lambda: self.record.failures or self._read_by_the_group() >= {*self._seen("plain")},
            within_s=120,
            what="the group to read all",
            every_s=0.2,
        )
        self._end(self.members)
        if self.pipeline is not None:
            self.pipeline.finish()
        assert self.record.failures == []

    def _read_by_the_group(self) -> set[bytes]:
        return {value for member in self.members for value in list(member.read)}

    def _end(self, clients: list[Worker] | list[IdempotentWriter] | list[GroupMember] | list[object]) -> None:
        for client in clients:
            client.stop.set()  # type: ignore[union-attr]
        for client in clients:
            client.thread.join(200)  # type: ignore[union-attr]
            assert not client.thread.is_alive(), f"{client.name} hangs"  # type: ignore[union-attr]
        assert self.record.failures == []

    def _seen(self, topic: str) -> list[bytes]:
        return list(self.watcher.values.get(topic, ()))

    def finish(self) -> None:
        """Everything is read by who watched all along and by who comes afterwards, and every replica is compared."""
        self._nobody_went_back()
        self.faults.wait_until_in_sync()
        for topic, partition in self.places:
            until(
                lambda t=topic, p=partition: self._is_stable(t, p),
                within_s=90,
                what=f"the last stable offset of {topic}-{partition} to reach its end",
            )
        self._watching.set()
        self._watch.join(30)
        late = Watcher(self.cluster.bootstrap_servers, self.record, self.places, "late reader")
        until(lambda: late.poll(0.1) or late.ends == set(self.places), within_s=120, what="every end", every_s=0)
        until(
            lambda: self.watcher.poll(0.1) or self.watcher.count >= late.count,
            within_s=60,
            what=f"the watcher to read all of {late.count} records",
            every_s=0,
        )
        for one in (late, self.watcher):
            one.close()
        anomalies = [str(anomaly) for anomaly in judge(self._history(), at_rest=True)]
        assert anomalies == [], "\n".join(anomalies[:20])
        read = {topic: Counter(late.values.get(topic, ())) for topic in TOPICS}
        for topic in TOPICS:
            assert read[topic] == Counter(self.watcher.values.get(topic, ())), f"two readers of {topic} differ"
        for source, target in (("source", "middle"), ("middle", "target")):
            copied = Counter(value.rpartition(b"|")[0] for value in late.values.get(target, ()))
            assert copied == read[source], f"each record of {source} is in {target} once"
        if self.pipeline is not None:
            assert read["spark"] == read["plain"], "the pipeline has copied each record once"
        assert self._read_by_the_group() == {*read["plain"]}, "the group has read everything"
        self._compare_replicas()
        check_files(self.cluster)
        unlawful = [what for what in self.record.fatal if not any(code in what for code in LAWFUL_ENDS)]
        assert unlawful == []

    def _history(self) -> list[Operation]:
        """Without the output of the pipeline, which has the values of its input: that is compared as a whole."""
        history: list[Operation] = []
        for operation in self.record.history:
            if isinstance(operation, Poll):
                kept = tuple(seen for seen in operation.records if seen.topic != "spark")
                operation = replace(operation, records=kept)
            history.append(operation)
        return history

    def _compare_replicas(self) -> None:
        for topic, partition in self.places:
            until(
                lambda t=topic, p=partition: self._differing(t, p) is None,
                within_s=60,
                what=f"the replicas of {topic}-{partition} to be byte-identical",
            )

    def _differing(self, topic: str, partition: int) -> str | None:
        contents = {}
        for broker in self.cluster.brokers.values():
            files = sorted((broker.directory / f"{topic}-{partition}").glob("*.log"))
            if files:
                contents[broker.number] = b"".join(path.read_bytes() for path in files)
        if len(contents) == 3 and len(set(contents.values())) == 1:
            return None
        return str({number: len(content) for number, content in contents.items()})

    def _is_stable(self, topic: str, partition: int) -> bool:
        found = []
        for isolation_level in (1, 0):
            row = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=-1)
            asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[row])
            for broker in self.cluster.brokers.values():
                with Raw(broker.address) as raw:
                    answer = raw.ask(
                        ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[asked]), 7
                    )
                place = answer.topics[0].partitions[0]
                if place.error_code == 0:
                    found.append(place.offset)
        return len(found) == 2 and found[0] == found[1]

    def report(self) -> str:
        workers = [*self.writers, *(each for stage in self.stages for each in stage)]
        committed, aborted = sum(one.committed for one in workers), sum(one.aborted for one in workers)
        acknowledged = sum(one.acknowledged for one in self.plain)
        met = ", ".join(f"{what} {count}" for what, count in sorted(self.record.errors.items())) or "none"
        waits = sorted(self.waits, reverse=True)
        slowest = ", ".join(f"{who} {seconds:.1f} s after {kind}" for seconds, who, kind in waits[:8])
        late = sum(1 for seconds, *_ in waits if seconds > LATE_S)
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.happened.items()))
        return (
            f"seed {self.seed}: {sum(self.happened.values())} faults ({faults}); {acknowledged} records acknowledged, "
            f"{committed} transactions committed and {aborted} aborted, {self.watcher.count} records read, "
            f"{self.pipeline.steps() if self.pipeline else 0} micro-batches; of {len(waits)} times that a client went "
            f"on after a healing {late} took longer than {LATE_S:g} s; the slowest: {slowest}; errors met: {met}; "
            f"readers went back {len(resets.all)} times; clients ended: {'; '.join(self.record.fatal) or 'none'}"
        )

    def diagnosis(self) -> str:
        """What the cluster says of itself, for whoever has to find out what went wrong."""
        said = []
        for command in (["cluster", "status"], ["txn", "list"]):
            whole = [sys.executable, "-m", "semel", *command, "--bootstrap", self.cluster.bootstrap_servers]
            done = subprocess.run(whole, capture_output=True, text=True, timeout=60, check=False)
            said.append(f"semel {' '.join(command)}\n{done.stdout}{done.stderr}")
        for writer in self.plain:
            bumps = [line for line in writer.said if "poch" in line or "rror" in line]
            said.append(f"{writer.name} of librdkafka:\n" + "\n".join(bumps[-60:]))
        said.append("readers that went back:\n" + "\n".join(f"{at:.3f} {text}" for at, _, text in resets.all))
        return "\n".join(said)

    def close(self) -> None:
        self._watching.set()
        if self.pipeline is not None:
            self.pipeline.close()
        self._stack.close()
