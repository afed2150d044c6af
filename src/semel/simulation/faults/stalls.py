"""Connections that stand still for a while, as TCP does when packets are lost: what was sent arrives in the end."""

from __future__ import annotations

from semel.simulation.connections import Connection, Transport
from semel.simulation.play import Play
from semel.simulation.world import BrokerNode

#: In a queue nothing overtakes it: what comes after it waits as well.
_NOTHING = b""


def connections(play: Play, client: BrokerNode, server: BrokerNode) -> list[Connection]:
    """Those that one broker has to another one."""
    way = f" {client.machine.name}>{server.machine.name}"
    return [each for each in play.world.network.connections.values() if each.name.endswith(way)]


def stop(end: Transport) -> None:
    """What this end sends waits from now on."""
    end.outgoing.append(_NOTHING)


def go_on(end: Transport) -> None:
    """Send what has waited."""
    if end.outgoing and end.outgoing[0] == _NOTHING:
        end.outgoing.popleft()
    end.send_on()


def holds_a_request(end: Transport) -> bool:
    """Whether something waits."""
    return any(end.outgoing)
