"""What is done to the cluster: each fault begins, lasts for a while, and is healed."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from semel.wire.messages.admin import AlterPartitionReassignmentsRequest, ElectLeadersRequest
from semel.wire.messages.metadata import DescribeClusterRequest, MetadataRequest
from tests.broker.raw import Raw
from tests.support.cluster import Cluster, ClusterBroker
from tests.support.network import Network
from tests.support.waiting import until


def machine_of(broker: ClusterBroker) -> str:
    return f"b{broker.number}"


@dataclass(frozen=True)
class Fault:
    """What is done, and for how long it may last before it is healed."""

    begin: Callable[[Faults], str]
    seconds: tuple[float, float]
    #: Whether it needs namespaces.
    by_network: bool = False


class Faults:
    """The cluster as an enemy sees it. Everything is drawn from one seed."""

    def __init__(self, cluster: Cluster, network: Network | None, topics: dict[str, int], seed: int) -> None:
        self.cluster, self.network, self.topics = cluster, network, topics
        self.chance = random.Random(seed)
        #: A broker that was told to stop may be asked only once.
        self._frozen: list[ClusterBroker] = []

    def kinds(self) -> list[str]:
        return [name for name, fault in FAULTS.items() if self.network is not None or not fault.by_network]

    def heal(self) -> None:
        """Everything runs, and everybody reaches everybody."""
        if self.network is not None:
            self.network.heal()
        for node in self.cluster.zookeeper.nodes:
            node.thaw()
            if not node.running.running():
                node.launch()
        self.cluster.zookeeper.wait(within_s=120)
        for broker in self.cluster.brokers.values():
            broker.thaw()
            if not broker.running.running():
                broker.launch()
        for broker in self.cluster.brokers.values():
            broker.wait(within_s=120)

    # Who and what

    def brokers(self, count: int = 1) -> list[ClusterBroker]:
        return self.chance.sample(list(self.cluster.brokers.values()), count)

    def ask(self, request: object, version: int) -> object | None:
        """Any broker's answer; None if the one that was asked does not answer now."""
        with suppress(OSError, AssertionError), Raw(self.brokers()[0].address) as raw:
            raw.socket.settimeout(5)
            return raw.ask(request, version)
        return None

    def controller(self) -> ClusterBroker:
        for _ in range(20):
            answer = self.ask(DescribeClusterRequest(), 0)
            if answer is not None and answer.controller_id in self.cluster.brokers:  # type: ignore[attr-defined]
                return self.cluster[answer.controller_id]  # type: ignore[attr-defined]
        return self.brokers()[0]

    def a_partition(self) -> tuple[str, int]:
        topic = self.chance.choice(sorted(self.topics))
        return topic, self.chance.randrange(self.topics[topic])

    def leader(self) -> ClusterBroker:
        topic, partition = self.a_partition()
        rows = [MetadataRequest.MetadataRequestTopic(name=topic)]
        answer = self.ask(MetadataRequest(topics=rows, allow_auto_topic_creation=False), 9)
        if answer is not None:
            for row in answer.topics[0].partitions:  # type: ignore[attr-defined]
                if row.partition_index == partition and row.leader_id in self.cluster.brokers:
                    return self.cluster[row.leader_id]
        return self.brokers()[0]

    # Faults

    def kill_a_leader(self) -> str:
        victim = self.leader()
        victim.kill9()
        return str(victim.number)

    def kill_the_controller(self) -> str:
        victim = self.controller()
        victim.kill9()
        return str(victim.number)

    def kill_several(self) -> str:
        victims = self.brokers(self.chance.randint(2, len(self.cluster.brokers)))
        for victim in victims:
            victim.kill9()
        return str([victim.number for victim in victims])

    def kill_again_and_again(self) -> str:
        """It is killed while it starts, loads and catches up."""
        victim = self.leader()
        for _ in range(3):
            victim.kill9()
            victim.launch()
            with suppress(AssertionError):
                victim.wait(within_s=self.chance.uniform(0.1, 4.0))
        victim.kill9()
        return str(victim.number)

    def freeze(self) -> str:
        victim = self.leader()
        victim.freeze()
        return str(victim.number)

    def freeze_and_kill_another(self) -> str:
        frozen, killed = self.brokers(2)
        frozen.freeze()
        killed.kill9()
        return f"{frozen.number} frozen, {killed.number} killed"

    def restart_one_after_the_other(self) -> str:
        for broker in self.cluster.brokers.values():
            broker.running.signal(signal.SIGTERM)
            broker.running.wait(within_s=90)
            broker.start()
        return "all"

    def cut_two(self) -> str:
        assert self.network is not None
        one, other = self.brokers(2)
        self.network.cut_both_ways(machine_of(one), machine_of(other))
        return f"{one.number} and {other.number}"

    def cut_one_way(self) -> str:
        assert self.network is not None
        one, other = self.brokers(2)
        self.network.cut(machine_of(one), machine_of(other))
        return f"{one.number} to {other.number}"

    def cut_off(self) -> str:
        """A leader from all other brokers, not from ZooKeeper and clients."""
        assert self.network is not None
        victim = self.leader()
        for other in self.cluster.brokers.values():
            if other is not victim:
                self.network.cut_both_ways(machine_of(victim), machine_of(other))
        return str(victim.number)

    def cut_off_from_zookeeper(self) -> str:
        assert self.network is not None
        victim = self.chance.choice([self.leader(), self.controller()])
        for node in self.cluster.zookeeper.nodes:
            self.network.cut_both_ways(machine_of(victim), f"z{node.number}")
        return str(victim.number)

    def cut_off_from_everybody(self) -> str:
        assert self.network is not None
        victim = self.leader()
        for name in self.network.machines:
            if name != machine_of(victim):
                self.network.cut_both_ways(machine_of(victim), name)
        return str(victim.number)

    def cut_off_from_clients(self) -> str:
        assert self.network is not None
        victim = self.leader()
        pair = (machine_of(victim), self.network.here)
        match self.chance.randrange(3):
            case 0:
                self.network.cut_both_ways(*pair)
            case 1:
                self.network.cut(*pair)
            case _:
                self.network.cut(*reversed(pair))
        return str(victim.number)

    def kill_a_zookeeper_node(self) -> str:
        node = self.chance.choice(self.cluster.zookeeper.nodes)
        self.chance.choice([node.kill9, node.freeze])()
        return str(node.number)

    def take_the_quorum(self) -> str:
        nodes = self.chance.sample(self.cluster.zookeeper.nodes, self.chance.randint(2, 3))
        kill = self.chance.random() < 0.5
        for node in nodes:
            node.kill9() if kill else node.freeze()
        return f"{[node.number for node in nodes]} {'killed' if kill else 'frozen'}"

    def take_the_quorum_and_kill_a_leader(self) -> str:
        return f"{self.take_the_quorum()}, broker {self.kill_a_leader()} killed"

    def reassign(self) -> str:
        said = []
        for _ in range(self.chance.randint(1, 3)):
            topic, partition = self.a_partition()
            replicas = [broker.number for broker in self.brokers(3)]
            row = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=partition, replicas=replicas)
            table = AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=[row])
            self.ask(AlterPartitionReassignmentsRequest(topics=[table]), 0)
            said.append(f"{topic}-{partition} to {replicas}")
        return ", ".join(said)

    def reassign_and_kill(self) -> str:
        return f"{self.reassign()}, broker {self.kill_a_leader()} killed"

    def elect_preferred_leaders(self) -> str:
        self.ask(ElectLeadersRequest(election_type=0, topic_partitions=None), 2)
        return "everywhere"

    def all_in_sync(self) -> bool:
        """As every broker knows it: nobody is missing, nothing is being moved."""
        for broker in self.cluster.brokers.values():
            with Raw(broker.address) as raw:
                rows = [MetadataRequest.MetadataRequestTopic(name=name) for name in self.topics]
                answer = raw.ask(MetadataRequest(topics=rows, allow_auto_topic_creation=False), 9)
            for topic in answer.topics:
                if len(topic.partitions) != self.topics[topic.name]:
                    return False
                for row in topic.partitions:
                    if row.leader_id < 0 or len(row.isr_nodes) != 3 or len(row.replica_nodes) != 3:
                        return False
        return True

    def wait_until_in_sync(self) -> None:
        until(self.all_in_sync, within_s=120, every_s=0.2, what="every replica to be in sync")


FAULTS: dict[str, Fault] = {
    "kill -9 of a leader": Fault(Faults.kill_a_leader, (0.0, 4.0)),
    "kill -9 of the controller": Fault(Faults.kill_the_controller, (0.0, 4.0)),
    "kill -9 of several": Fault(Faults.kill_several, (0.0, 5.0)),
    "kill -9 again and again": Fault(Faults.kill_again_and_again, (0.0, 1.0)),
    "SIGSTOP of a leader": Fault(Faults.freeze, (0.5, 12.0)),
    "SIGSTOP of one, kill -9 of another": Fault(Faults.freeze_and_kill_another, (0.5, 12.0)),
    "rolling restart": Fault(Faults.restart_one_after_the_other, (0.0, 0.0)),
    "two brokers cut apart": Fault(Faults.cut_two, (1.0, 12.0), by_network=True),
    "two brokers cut apart one way": Fault(Faults.cut_one_way, (1.0, 12.0), by_network=True),
    "leader cut from all brokers": Fault(Faults.cut_off, (1.0, 12.0), by_network=True),
    "broker cut from ZooKeeper": Fault(Faults.cut_off_from_zookeeper, (1.0, 15.0), by_network=True),
    "leader cut from everybody": Fault(Faults.cut_off_from_everybody, (1.0, 15.0), by_network=True),
    "leader cut from clients": Fault(Faults.cut_off_from_clients, (1.0, 8.0), by_network=True),
    "ZooKeeper node lost": Fault(Faults.kill_a_zookeeper_node, (0.5, 8.0)),
    "ZooKeeper quorum lost": Fault(Faults.take_the_quorum, (0.5, 12.0)),
    "ZooKeeper quorum lost, kill -9 of a leader": Fault(Faults.take_the_quorum_and_kill_a_leader, (0.5, 8.0)),
    "reassignment": Fault(Faults.reassign, (0.0, 2.0)),
    "reassignment and kill -9": Fault(Faults.reassign_and_kill, (0.0, 4.0)),
    "preferred leaders elected": Fault(Faults.elect_preferred_leaders, (0.0, 1.0)),
}
