"""A cluster that is nothing but its znodes: decisions are carried out on the simulated tree and read back."""

from __future__ import annotations

from semel.machines.controller.decide import Event, decide
from semel.machines.controller.image import Broker, Image, Topic
from semel.machines.controller.packing import MULTI_MAX_BYTES
from semel.machines.replication.values import PartitionState
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths
from semel.machines.znodes.operations import Create, Delete, Multi, Operation
from semel.machines.znodes.values import BrokerLife, TopicAssignment, decode_controller, decode_controller_epoch
from semel.machines.znodes.values import decode_state as decode
from semel.simulation.zookeeper.tree import Transaction, Tree


class ClusterInATree:
    """`live` are the brokers with an ephemeral node; each belongs to a session with the broker's number."""

    def __init__(self, *brokers: int, min_insync_replicas: int = 2) -> None:
        self.tree = Tree()
        self.min_insync_replicas = min_insync_replicas
        self.unclean_allowed = False
        self.racks: dict[int, str] = {}
        for path in paths.PERSISTENT:
            self.carry_out(Multi((Create(path),)))
        self.carry_out(Multi((Create(paths.CONTROLLER_EPOCH, b"0"),)))
        for broker in brokers:
            self.carry_out(Multi((Create(paths.life(broker), BrokerLife(f"directory-{broker}").encode()),)))
            self.carry_out(Multi((Create(paths.broker(broker), b"{}", ephemeral=True),)), session=broker)

    def carry_out(self, multi: Multi, session: int = 1) -> None:
        """`MultiRefused` if ZooKeeper would refuse it."""
        changes = self.tree.prepare(multi.operations, session, ())
        self.tree.apply(Transaction(self.tree.zxid + 1, 0, changes))

    def do(self, *operations: Operation) -> None:
        self.carry_out(Multi(operations))

    def decide(self, event: Event, image: Image | None = None) -> list[Multi]:
        multis = decide(image or self.image(), event)
        assert all(multi.size_bytes() <= MULTI_MAX_BYTES for multi in multis)
        return multis

    def happens(self, event: Event, session: int = 1) -> list[Multi]:
        """Decides and carries out."""
        multis = self.decide(event)
        for multi in multis:
            self.carry_out(multi, session)
        return multis

    def dies(self, broker: int) -> None:
        self.do(Delete(paths.broker(broker)))

    def children(self, path: str) -> list[str]:
        return sorted(self.tree.nodes[path].children)

    def image(self) -> Image:
        nodes = self.tree.nodes
        brokers = {}
        for name in self.children(paths.LIVES):
            number, node = int(name), nodes[paths.life(int(name))]
            life = BrokerLife.decode(node.data, "life")
            alive = paths.broker(number) in nodes
            brokers[number] = Broker(number, node.version, alive, life.leaving, self.racks.get(number))
        topics, states = {}, {}
        for name in self.children(paths.TOPICS):
            node = nodes[paths.topic(name)]
            topics[name] = Topic(
                name,
                TopicAssignment.decode(node.data, name),
                node.version,
                self.min_insync_replicas,
                self.unclean_allowed,
                paths.config("topics", name) in nodes,
            )
            for number in self.children(paths.partitions(name)):
                state = nodes[paths.state(name, int(number))]
                states[TopicPartition(name, int(number))] = decode(state.data, name), state.version
        epoch = nodes[paths.CONTROLLER_EPOCH]
        controller = nodes.get(paths.CONTROLLER)
        return Image(
            brokers,
            topics,
            states,
            None if controller is None else decode_controller(controller.data),
            decode_controller_epoch(epoch.data),
            epoch.version,
            frozenset(self.children(paths.DELETED_TOPICS)),
        )

    def state(self, topic: str, partition: int = 0) -> PartitionState:
        return self.image().states[TopicPartition(topic, partition)][0]
