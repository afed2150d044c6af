"""A cluster for tests and for trying things out: real broker processes over a ZooKeeper that needs no Java.

>>> import semel
>>> with semel.Cluster(brokers=3) as cluster:
...     with semel.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"}) as producer:
...         first = producer.send("payments", b"12.50").result(60)
...         cluster.kill(cluster.leader_of("payments", 0))
...         second = producer.send("payments", b"13.00", partition=0).result(60)
...     first.offset, second.offset
(0, 1)

The ZooKeeper is the simulated one, in this process on a free port: it is compared with Apache ZooKeeper in Semel's own
tests, and it keeps nothing when it ends. `zookeeper="HOST:PORT"` takes a real one.

The network between the brokers, and from each to ZooKeeper, can be cut (`cuts=True`), one way or both ways:

>>> with semel.Cluster(brokers=3, cuts=True) as cluster:
...     cluster.cut(1, 2)
...     cluster.cut(3, "zookeeper", one_way=True)
...     cluster.cuts
...     cluster.heal()
[(1, 2), (2, 1), (3, 'zookeeper')]
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from semel.config import BROKER, ConfigError
from semel.machines.values import is_topic_name
from semel.testing.broker_process import BrokerProcess, free_ports, zookeeper_servers
from semel.testing.network import ZOOKEEPER, Network, Place
from semel.testing.watchdog import Watchdog

if TYPE_CHECKING:
    from semel.simulation.zookeeper.on_a_socket import ZooKeeperOnASocket

MOST_BROKERS = 100
#: Settings that the cluster chooses by itself.
_ITS_OWN = ("node.id", "broker.id", "listeners", "advertised.listeners", "log.dirs", "log.dir", "zookeeper.connect")
#: Settings that it also chooses if its network can be cut.
_OF_CUTS = (
    "inter.broker.listener.name",
    "listener.security.protocol.map",
    "security.inter.broker.protocol",
)


def check_installed() -> None:
    """ConfigError if the brokers of a cluster could not reach ZooKeeper: they need the extra `cluster`."""
    if importlib.util.find_spec("kazoo") is None:
        raise ConfigError("a cluster needs kazoo, a client of ZooKeeper: pip install 'semel[cluster]'")


class Cluster:
    """Brokers 1 to `brokers`, each a process of its own; started with `with`, stopped when the block ends.

    Without `data_dir` their data is in a temporary directory, which is removed afterwards. With a `zookeeper` of yours
    a new cluster can go on with an earlier one's `data_dir`; the built-in one forgets all. `settings` are for every
    broker, under Kafka's names. New topics have three replicas (as many as there are brokers, if fewer), and with three
    or more brokers `min.insync.replicas` is 2, so that any one broker may be lost. `ports` are the brokers' ports; free
    ones if not given. With `cuts`, what brokers say to each other and to ZooKeeper goes through this process, where
    `cut` and `heal` act on it; clients connect to the brokers themselves.

    Several threads may use it at once.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        settings: Mapping[str, object] | None = None,
        zookeeper: str | None = None,
        ports: list[int] | None = None,
        cuts: bool = False,
    ) -> None:
        if not isinstance(brokers, int) or isinstance(brokers, bool):
            raise TypeError(f"brokers is a whole number, not {type(brokers).__name__}")
        if brokers < 1:
            raise ValueError(f"brokers={brokers!r}: a cluster has at least one broker")
        if brokers > MOST_BROKERS:
            raise ValueError(f"brokers={brokers!r}: {MOST_BROKERS} are the most; each is a process of its own")
        check_installed()
        if settings is not None and not isinstance(settings, Mapping):
            raise TypeError(f"settings are a dict of Kafka's names, not {type(settings).__name__}")
        if ports is not None:
            _check_ports(ports, brokers)
        if zookeeper is not None:
            zookeeper_servers(zookeeper)
        if data_dir is not None and zookeeper is None:
            _check_new(Path(data_dir))
        # As elsewhere, None is a setting that is not set.
        given = {name: value for name, value in (settings or {}).items() if value is not None}
        for name in (*_ITS_OWN, *(_OF_CUTS if cuts else ())):
            if name in given:
                raise ConfigError(f"{name}: the cluster chooses it for each broker")
        factor = min(3, brokers)
        self._settings: dict[str, object] = {
            "default.replication.factor": factor,
            "offsets.topic.replication.factor": factor,
            "transaction.state.log.replication.factor": factor,
            "min.insync.replicas": 2 if brokers >= 3 else 1,
            "zookeeper.session.timeout.ms": 6000,
            **given,
        }
        BROKER.parse(self._settings)
        self._zookeeper_at = zookeeper
        self._zookeeper: ZooKeeperOnASocket | None = None
        self._network = Network() if cuts else None
        #: If this program is killed, its brokers end as well.
        self._watchdog = Watchdog()
        self._was_started, self._is_running, self._was_stopped = False, False, False
        #: Whoever stops it a second time waits for the first.
        self._stopping = threading.Lock()
        self._owner = os.getpid()
        self._temporary: str | None = None
        if data_dir is None:
            self._temporary = tempfile.mkdtemp(prefix="semel-cluster-")
            atexit.register(self._remove_temporary)
        self.data_dir = Path(data_dir if data_dir is not None else str(self._temporary))
        wanted = ports if ports is not None else free_ports(brokers)
        self._brokers = {
            number: BrokerProcess(number, self.data_dir, port, self._watchdog) for number, port in enumerate(wanted, 1)
        }

    # Life

    def start(self, told: Callable[[str], None] = lambda line: None) -> Cluster:
        """Start ZooKeeper and every broker, and return once clients can connect. `told` gets a line for each.

        A cluster can be started once. One that is not stopped ends with the program.
        """
        if self._was_started or self._was_stopped:
            before = "started" if self._was_started else "stopped"
            raise RuntimeError(f"the cluster was {before} before: create a new one")
        self._was_started = self._is_running = True
        atexit.register(self.stop)
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            if self._zookeeper_at is None:
                from semel.simulation.zookeeper.on_a_socket import ZooKeeperOnASocket

                self._zookeeper = ZooKeeperOnASocket().__enter__()
                self._zookeeper_at = self._zookeeper.connect
            if self._network is not None:
                self._network.start()
            for broker in self._brokers.values():
                broker.prepare(self._zookeeper_at, self._settings, self._network)
                broker.launch()
            for number, broker in self._brokers.items():
                broker.wait()
                told(f"broker {number} ready on {broker.address}, data in {broker.directory}")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop every broker, then ZooKeeper, and remove a temporary directory. In a forked process: do nothing.

        Once more does nothing.
        """
        if os.getpid() != self._owner:
            return
        with self._stopping:
            if not self._was_stopped:
                self._was_stopped = True
                self._stop()

    def _stop(self) -> None:
        atexit.unregister(self.stop)
        self._is_running = False
        if self._network is not None and self._network.cuts:
            # A broker that is cut off from ZooKeeper could not hand over.
            self._network.heal(lambda sender, receiver: True)
        for broker in self._brokers.values():
            broker.stop_for_good()
        for broker in self._brokers.values():
            broker.end()
        self._watchdog.close()
        if self._network is not None:
            self._network.stop()
        if self._zookeeper is not None:
            self._zookeeper.__exit__()
            self._zookeeper, self._zookeeper_at = None, None
        self._remove_temporary()

    def _remove_temporary(self) -> None:
        if self._temporary is not None and os.getpid() == self._owner:
            atexit.unregister(self._remove_temporary)
            shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Who is there

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, whether they run or not."""
        return ",".join(broker.address for broker in self._brokers.values())

    @property
    def zookeeper_connect(self) -> str:
        """What `zookeeper.connect` says."""
        if self._zookeeper_at is None:
            self._must_run()
        return str(self._zookeeper_at)

    @property
    def numbers(self) -> list[int]:
        """The brokers' numbers (`node.id`)."""
        return list(self._brokers)

    def address(self, broker: int) -> str:
        """HOST:PORT of one broker."""
        return self._broker(broker).address

    def is_running(self, broker: int) -> bool:
        """Whether the process of a broker is there; it may be paused."""
        return self._broker(broker).is_running

    def output(self, broker: int) -> str:
        """What a broker has printed, in all its lives."""
        return self._broker(broker).output()

    def leader_of(self, topic: str, partition: int = 0, *, within_s: float = 30.0) -> int:
        """The broker that leads a partition, as soon as one does."""
        if not isinstance(topic, str) or type(partition) is not int:
            raise TypeError(f"leader_of({topic!r}, {partition!r}): a topic's name, and the number of a partition")
        if not is_topic_name(topic) or partition < 0 or not within_s >= 0:
            raise ValueError(f"leader_of({topic!r}, {partition!r}, within_s={within_s!r}): there can be no such thing")
        self._must_run()
        return self._wait_for_leader(topic, partition, within_s)

    # What happens to them

    def kill(self, broker: int) -> None:
        """End a broker's process at once, without a word (SIGKILL)."""
        self._broker(broker, to_run=True).kill()

    def pause(self, broker: int) -> None:
        """Freeze a broker's process (SIGSTOP): its connections stay open, and it says nothing."""
        found = self._broker(broker, to_run=True)
        if not found.is_running:
            raise RuntimeError(f"broker {broker} does not run, so it cannot be paused: restart({broker}) starts it")
        found.pause()

    def resume(self, broker: int) -> None:
        """Let a paused broker go on."""
        self._broker(broker, to_run=True).resume()

    def shut_down(self, broker: int) -> None:
        """Stop one broker in order: it hands over what it leads first."""
        found = self._broker(broker, to_run=True)
        with found.changing:
            found.stop()
            found.end()

    def restart(self, broker: int) -> None:
        """Start a broker again on its data and port, after stopping it in order if it runs."""
        found = self._broker(broker, to_run=True)
        with found.changing:
            self.shut_down(broker)
            found.launch()
            found.wait()

    def cut(self, a: Place, b: Place, *, one_way: bool = False) -> None:
        """Lose what `a` and `b` say to each other; with `one_way` only what `a` says to `b`.

        Each is a broker's number, or "zookeeper". Nobody is told: connections stay open and are silent. Cuts add up.
        """
        network = self._cuttable()
        first, second = self._place(a), self._place(b)
        if first == second:
            raise ValueError(f"cut({a!r}, {b!r}): a cut is between two of them")
        network.cut(first, second)
        if not one_way:
            network.cut(second, first)

    def heal(self, a: Place | None = None, b: Place | None = None) -> None:
        """Undo every cut; of one place, or between two of them, if they are given."""
        network = self._cuttable()
        wanted = {self._place(each) for each in (a, b) if each is not None}
        network.heal(lambda sender, receiver: wanted <= {sender, receiver})

    @property
    def cuts(self) -> list[tuple[Place, Place]]:
        """What is cut now, as (from, to)."""
        return self._cuttable().cuts

    def _cuttable(self) -> Network:
        if self._network is None:
            raise RuntimeError("the network of this cluster cannot be cut: make it with Cluster(..., cuts=True)")
        self._must_run()
        return self._network

    def _place(self, place: Place) -> Place:
        if place == ZOOKEEPER or (type(place) is int and place in self._brokers):
            return place
        raise ValueError(f"{place!r}: there are brokers {', '.join(map(str, self._brokers))}, and {ZOOKEEPER!r}")

    def _broker(self, number: int, *, to_run: bool = False) -> BrokerProcess:
        if type(number) is not int or number not in self._brokers:
            raise ValueError(f"broker {number!r}: there are {', '.join(map(str, self._brokers))}")
        if to_run:
            self._must_run()
        return self._brokers[number]

    def _must_run(self) -> None:
        if not self._is_running:
            raise RuntimeError("the cluster was stopped" if self._was_stopped else "the cluster was not started")

    def _wait_for_leader(self, topic: str, partition: int, within_s: float) -> int:
        deadline = time.monotonic() + within_s
        while True:
            for broker in self._brokers.values():
                leader = broker.asked_for_leader(topic, partition) if broker.answers else None
                if leader is not None and leader >= 0 and self.is_running(leader):
                    return leader
            if time.monotonic() > deadline:
                answering = [str(number) for number, broker in self._brokers.items() if broker.answers]
                asked = f"brokers that know none: {', '.join(answering)}" if answering else "no broker runs"
                raise TimeoutError(f"nobody leads {topic}-{partition} after {within_s:g} s: {asked}")
            time.sleep(0.05)


def _check_new(data_dir: Path) -> None:
    """The built-in ZooKeeper begins empty: brokers that have been in a cluster cannot go on with it."""
    old = next(iter(sorted(data_dir.glob("broker-*/meta.properties"))), None)
    if old is not None:
        raise ValueError(
            f"data_dir={str(data_dir)!r}: {old.parent.name} in it belongs to an earlier cluster, whose ZooKeeper was "
            "built in and kept nothing. Give an empty directory; or, to keep a cluster, zookeeper='HOST:PORT' always"
        )


def _check_ports(ports: list[int], brokers: int) -> None:
    if not isinstance(ports, (list, tuple, range)) or len(ports) != brokers:
        raise ValueError(f"ports={ports!r}: give one for each of {brokers} brokers")
    for port in ports:
        if type(port) is not int or not 0 < port < 2**16:
            raise ValueError(f"ports={ports!r}: {port!r} is no port; they are whole numbers from 1 to 65535")
    if len({*ports}) != brokers:
        raise ValueError(f"ports={ports!r}: each broker has its own")
