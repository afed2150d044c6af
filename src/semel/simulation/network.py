"""A network in memory: connections between the processes of a world, with delays, cuts, resets and lost answers.

It promises what TCP promises, and no more: what arrives on a connection arrives in order and whole, and the end of a
connection may be told, told late, or not at all. Connections overtake each other. Data that is sent into a cut arrives
when the cut heals. A machine without power says nothing: its connections are half open until it is back. Who asked the
system to look after a connection (`TCP_USER_TIMEOUT`) is told after that time that the other machine is silent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from semel.simulation.connections import Connection, Transport
from semel.simulation.event_loop import PROCESS

if TYPE_CHECKING:
    from semel.simulation.machines import Machine, Process
    from semel.simulation.world import World


class Conditions:
    """How the network is at the moment."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As good as it gets."""
        #: The usual delay of a message, and how often and how much longer it takes now and then.
        self.delay_s = 0.0005
        self.spike_chance = 0.01
        self.spike_s = 0.05
        #: How often what was written at once arrives in pieces.
        self.split_chance = 0.02


class Network:
    """All connections of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._loop = world.loop
        self.chance = world.chance_for("network")
        self._random = self.chance.random
        self._trace = world.trace
        self.conditions = Conditions()
        #: (from, to): what is sent this way does not arrive now.
        self._cuts: set[tuple[str, str]] = set()
        self._healed: list[asyncio.Future[None]] = []
        self._listeners: dict[tuple[str, int], Server] = {}
        self.connections: dict[int, Connection] = {}
        self._number = 0
        self._next_port = 50_000
        self.delivered_bytes = 0
        self.requests = 0
        #: The last requests that came whole, and when, for whoever sends them again (`faults.repeats`).
        self.heard: deque[tuple[float, bytes]] = deque(maxlen=200)

    # Conditions

    def delay_s(self) -> float:
        conditions, random = self.conditions, self._random
        delay = conditions.delay_s * (0.5 + random())
        if random() < conditions.spike_chance:
            delay += conditions.spike_s * random()
        return delay

    def cut(self, source: str, target: str) -> None:
        """Nothing more gets from one machine to the other. The other way is another cut."""
        self._cuts.add((source, target))
        for connection in tuple(self.connections.values()):
            if {source, target} == {end.machine.name for end in connection.ends}:
                connection.grew_silent()

    def lost_power(self, machine: Machine) -> None:
        """Nobody says anything there any more."""
        for connection in tuple(self.connections.values()):
            if any(end.machine is machine for end in connection.ends):
                connection.grew_silent()

    def heal(self, source: str, target: str) -> None:
        """What was sent meanwhile arrives now."""
        self._cuts.discard((source, target))
        for connection in tuple(self.connections.values()):
            connection.healed()
        waiting, self._healed = self._healed, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def heal_all(self) -> None:
        for pair in sorted(self._cuts):
            self.heal(*pair)

    def is_cut(self, source: Machine, target: Machine) -> bool:
        return not target.is_up or (bool(self._cuts) and (source.name, target.name) in self._cuts)

    def came_back(self, machine: Machine) -> None:
        """A machine has power again: it knows nothing of its old connections, and says so when it is asked."""
        for connection in tuple(self.connections.values()):
            for end in connection.ends:
                if end.process.machine is machine and not end.process.is_alive and connection.is_asked_about(end):
                    connection.reset()
        self.heal("", "")

    # Opening

    def listen(self, factory: Callable[[], Any], port: int, *, is_serving: bool) -> Server:
        process = PROCESS.get()
        assert process is not None
        if port == 0:
            port = self._next_port
            self._next_port += 1
        key = process.machine.name, port
        if key in self._listeners:
            raise OSError(98, "address already in use")
        server = self._listeners[key] = Server(self, process, factory, port)
        server.is_serving = is_serving
        process.servers.append(server)
        return server

    def forget(self, server: Server) -> None:
        self._listeners.pop((server.process.machine.name, server.port), None)

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        process = PROCESS.get()
        assert process is not None
        here, there = process.machine, self._world.machine(host)
        await asyncio.sleep(self.delay_s())
        while self.is_cut(here, there) or self.is_cut(there, here):
            healed = self._loop.create_future()
            self._healed.append(healed)
            await healed
        server = self._listeners.get((host, port))
        if server is None:
            await asyncio.sleep(self.delay_s())
            raise ConnectionRefusedError(111, "Connection refused")
        self._number += 1
        connection = Connection(self, self._number, process, server.process, f"{here.name}>{host}")
        self.connections[self._number] = connection
        client, other = connection.ends
        if server.is_serving:
            server.accept(other)
        else:
            server.backlog.append(other)
        await asyncio.sleep(self.delay_s())
        if client.is_over:
            # Meanwhile it was reset. asyncio never returns a protocol that was not told of its connection.
            raise ConnectionResetError(104, "Connection reset by peer")
        protocol = factory()
        client.begin(protocol)
        return client, protocol


class Server:
    """A listening socket, as asyncio shows it."""

    def __init__(self, network: Network, process: Process, factory: Callable[[], Any], port: int) -> None:
        self._network = network
        self.process = process
        self._factory = factory
        self.port = port
        self.is_serving = False
        self.backlog: list[Transport] = []
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return self.process.machine.name, self.port

    async def start_serving(self) -> None:
        self.is_serving = True
        waiting, self.backlog = self.backlog, []
        for transport in waiting:
            self.accept(transport)

    def accept(self, transport: Transport) -> None:
        loop = self._network._loop
        loop.call_at(
            loop.time() + self._network.delay_s(), self._accept, transport, context=self.process.context.copy()
        )

    def _accept(self, transport: Transport) -> None:
        if not transport.is_closing():
            transport.begin(self._factory())

    def close(self) -> None:
        self._network.forget(self)
        if self in self.process.servers:
            self.process.servers.remove(self)
        for transport in self.backlog:
            transport.connection.reset()
        self.backlog.clear()
