"""Machines of a test as network namespaces on one bridge, so that any of them can be cut off from any other.

A program that uses `Network` runs inside `secluded(...)`: a network, a mount and a process namespace of its own. The
kernel ends all of its processes and removes all of its networks when the program is gone, however it went, and also
when whoever started it is gone. It needs root, or user namespaces that anybody may make.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

_BRIDGE = "semel0"
_NET = "10.77.0"


@dataclass(frozen=True)
class Machine:
    """Where a process runs: its address, and what is put before its command."""

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


#: No namespace, as most tests have it.
HERE = Machine()


def secluded(command: Sequence[str]) -> list[str]:
    """The command in namespaces of its own. It dies with the thread that started it, and everything else with it."""
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if not _root_may():
        unshare += ["--user", "--map-root-user"]
    return ["setpriv", "--pdeathsig", "KILL", *unshare, *command]


@cache
def _root_may() -> bool:
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0


@cache
def why_no_networks() -> str:
    """Why networks cannot be made here; empty if they can."""
    for tool in ("setpriv", "unshare", "ip"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    done = subprocess.run(
        secluded(["ip", "link", "add", _BRIDGE, "type", "bridge"]), capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stderr.strip() or "bridges cannot be made"


class Network:
    """The machines, by name. The program itself is the machine `here`, at the bridge."""

    def __init__(self, names: Sequence[str], *, here: str = "clients") -> None:
        subprocess.run(["mkdir", "-p", "/run/netns"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run/netns"], check=True)
        self.here = here
        self.machines = {here: Machine(f"{_NET}.1")}
        self._ip("link set lo up")
        self._ip(f"link add {_BRIDGE} type bridge")
        self._ip(f"addr add {_NET}.1/24 dev {_BRIDGE}")
        self._ip(f"link set {_BRIDGE} up")
        for number, name in enumerate(names, 2):
            self._ip(f"netns add {name}")
            self._ip(f"link add v{number} type veth peer name eth0 netns {name}")
            self._ip(f"link set v{number} master {_BRIDGE} up")
            self._ip(f"-n {name} addr add {_NET}.{number}/24 dev eth0")
            self._ip(f"-n {name} link set eth0 up")
            self._ip(f"-n {name} link set lo up")
            self.machines[name] = Machine(f"{_NET}.{number}", ("ip", "netns", "exec", name))
        self._cuts: set[tuple[str, str]] = set()

    def cut(self, sender: str, receiver: str) -> None:
        """Nothing that `sender` sends arrives at `receiver` any more. The other way is as it was."""
        if (sender, receiver) not in self._cuts:
            self._route("add", sender, receiver)
            self._cuts.add((sender, receiver))

    def cut_both_ways(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        """Everybody reaches everybody again."""
        while self._cuts:
            self._route("del", *self._cuts.pop())

    def _route(self, what: str, sender: str, receiver: str) -> None:
        inside = "" if sender == self.here else f"-n {sender} "
        self._ip(f"{inside}route {what} blackhole {self.machines[receiver].address}/32")

    @staticmethod
    def _ip(arguments: str) -> None:
        done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"ip {arguments}: {done.stderr}"
