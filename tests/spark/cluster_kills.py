"""Rounds of kill -9 at a pipeline on three of our brokers: whoever is needed at the moment, or the driver.

There is no proxy in front of several brokers. The moment comes from the driver's own words and from the transaction's
state; then the driver is frozen and the cluster is asked where it stands, as in `kills`.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import semel
from semel.wire.messages.metadata import FindCoordinatorRequest
from tests.broker.raw import Raw
from tests.spark.kills import PARTITIONS, TRANSACTIONAL_ID, Kills, Place
from tests.support.waiting import until

GROUP, TRANSACTION = 0, 1


def coordinator_of(cluster: semel.Cluster, kind: int, key: str) -> int:
    """The broker that coordinates this group or this transactional id."""

    def found() -> int:
        asked = next(number for number in cluster.numbers if cluster.is_running(number))
        with Raw(cluster.address(asked)) as raw:
            row = raw.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4).coordinators[0]
        return 0 if row.error_code else int(row.node_id)

    return until(found, within_s=60, what=f"a coordinator of {key}")


class OneOfThree:
    """A cluster as `Kills` wants it: a kill hits one broker that the pipeline needs, and `start` brings it back."""

    def __init__(self, cluster: semel.Cluster, seed: int) -> None:
        self.cluster = cluster
        self.roles: Counter[str] = Counter()
        self._chance = random.Random(seed)
        self._killed: int | None = None

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    def kill9(self) -> None:
        role = self._chance.choice(["transaction coordinator", "group coordinator", "leader"])
        if role == "leader":
            self._killed = self.cluster.leader_of("ledger", self._chance.randrange(PARTITIONS))
        else:
            kind = TRANSACTION if role.startswith("transaction") else GROUP
            self._killed = coordinator_of(self.cluster, kind, TRANSACTIONAL_ID)
        self.roles[role] += 1
        self.cluster.kill(self._killed)

    def start(self, *, within_s: float = 60) -> None:
        """Back, but perhaps not yet in sync: the next kill need not wait for that."""
        assert self._killed is not None
        time.sleep(self._chance.random())  # a pipeline has to go on without it
        self.cluster.restart(self._killed)


class ClusterKills(Kills):
    """Kills without a proxy."""

    replicas = 3
    broker: OneOfThree

    def _begin_watching(self) -> str:
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._keep_looking, name="watcher", daemon=True)
        self._watcher.start()
        return self.broker.bootstrap_servers

    def _stop_watching(self) -> None:
        self._stopping.set()
        self._watcher.join(60)

    def _keep_looking(self) -> None:
        while not self._stopping.wait(0.005):
            aim, driver = self._aim, self.driver
            if aim is None or driver is None or not driver.running():
                continue
            said = next((line for line in reversed(driver.lines()) if line.startswith("batch ")), "")
            if aim[1] == {Place.COMMITTED}:
                is_time = said.endswith(": COMMITTED")
            else:
                is_time = said.endswith((": BEGUN", ": PRODUCED", ": OFFSETS_ADDED"))
            if is_time:
                time.sleep(self.chance.random() * (0.02 if aim[1] == {Place.COMMITTED} else 0.3))
                self._strike(*aim)

    def _leader_of(self, partition: int) -> str:
        return self.broker.cluster.address(self.broker.cluster.leader_of("ledger", partition))

    def report(self) -> str:
        roles = ", ".join(f"{role} {count}" for role, count in sorted(self.broker.roles.items()))
        return f"{super().report()}; brokers killed as {roles}"
