"""A ZooKeeper in memory: the same answers, errors, facts and watch events as ZooKeeper 3.9, and faults on demand.

`tree.py` is what a server stores, `ensemble.py` the servers and sessions; both are told the time. `client.py` has what
brokers use, a `ZooKeeperSession` on an event loop, and the shell that gives it an ensemble with delays and faults.
`tests/simulation/zookeeper` holds it equal to a real ZooKeeper.
"""

from semel.simulation.zookeeper.client import SimulatedSession
from semel.simulation.zookeeper.shell import Delays, SimulatedZooKeeper

__all__ = ["Delays", "SimulatedSession", "SimulatedZooKeeper"]
