"""A Jepsen of our own: four brokers and three ZooKeeper nodes, each on a machine of its own, under fire for 20 minutes.

Idempotent and transactional producers, a chain of copiers, a group and a Spark pipeline are at work while brokers are
killed, frozen, cut off and restarted, replicas moved, and ZooKeeper loses nodes and its quorum. What clients saw is
judged, and every replica is compared. `tests/cluster/jepsen` has the parts; `python -m tests.cluster.jepsen --seed N`
plays the same faults again. SEMEL_JEPSEN_SECONDS says for how long instead.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.network import secluded, why_no_networks
from tests.support.processes import Process
from tests.support.requirements import CHECKOUT, require_kafka, require_spark, require_zookeeper
from tests.support.waiting import until

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("SEMEL_JEPSEN_SECONDS", "1200"))


@pytest.mark.java
@pytest.mark.spark
@pytest.mark.timeout(SECONDS + 1800)
def test_a_cluster_under_fire_loses_nothing_doubles_nothing_and_everybody_goes_on(tmp_path: Path) -> None:
    require_zookeeper()
    require_kafka()
    require_spark()
    # It dies with us, and all that it has started with it.
    last_will = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    command = [sys.executable, "-u", "-m", "tests.cluster.jepsen", "--seconds", str(SECONDS)]
    path = os.pathsep.join((str(CHECKOUT / "src"), str(CHECKOUT)))
    said = 0
    with Process(
        [*last_will, *command, "--directory", str(tmp_path)],
        name="jepsen",
        environment={"PYTHONPATH": path},
        output=tmp_path / "jepsen.log",
        directory=CHECKOUT,
    ) as run:

        def ended() -> bool:
            nonlocal said
            is_over = not run.running()
            lines = run.lines()
            print(*lines[said:], sep="\n", end="\n" if lines[said:] else "", flush=True)
            said = len(lines)
            return is_over

        until(ended, within_s=SECONDS + 1500, every_s=1.0, what="the run to end")
        assert run.popen.returncode == 0, run.output()[-6000:]


def _inside(program: str) -> str:
    cannot = why_no_networks()
    if cannot:
        pytest.skip(f"networks cannot be made here: {cannot}")
    path = os.pathsep.join((str(CHECKOUT / "src"), str(CHECKOUT)))
    done = subprocess.run(
        secluded([sys.executable, "-c", textwrap.dedent(program)]),
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_cut_is_one_way_and_heals() -> None:
    said = _inside(
        """
        import subprocess, sys
        from tests.support.network import Network
        network = Network(["a", "b"])
        def arrives(sender, receiver):
            to = network.machines[receiver]
            listener = subprocess.Popen([*to.prefix, sys.executable, "-c",
                "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('0.0.0.0', 9)); s.settimeout(5);"
                "print('ready', flush=True)\\ntry: s.recv(1); print('got')\\nexcept TimeoutError: print('nothing')"],
                stdout=subprocess.PIPE, text=True)
            listener.stdout.readline()
            subprocess.run([*network.machines[sender].prefix, sys.executable, "-c",
                f"import socket\\ntry: socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('{to.address}', 9))\\n"
                "except OSError: pass"], check=True)
            return listener.communicate()[0].strip() == "got"
        print(arrives("a", "b"), arrives("b", "a"))
        network.cut("a", "b")
        print(arrives("a", "b"), arrives("b", "a"))
        network.heal()
        print(arrives("a", "b"), arrives("b", "a"))
        """
    )
    assert said.split() == ["True", "True", "False", "True", "True", "True"]


def test_nothing_is_left_when_whoever_started_it_is_terminated() -> None:
    cannot = why_no_networks()
    if cannot:
        pytest.skip(f"networks cannot be made here: {cannot}")
    mark = f"3600.{os.getpid()}"
    program = f"""
        import subprocess, time
        from tests.support.network import secluded
        subprocess.Popen(secluded(["sh", "-c", "sleep {mark} & sleep {mark}"]), start_new_session=True)
        time.sleep(3600)
    """

    def sleepers() -> int:
        found = subprocess.run(["pgrep", "-fc", f"^sleep {mark}"], capture_output=True, text=True, check=False)
        return int(found.stdout)

    with Process(
        [sys.executable, "-c", textwrap.dedent(program)],
        name="starter",
        environment={"PYTHONPATH": os.pathsep.join((str(CHECKOUT / "src"), str(CHECKOUT)))},
    ) as starter:
        until(lambda: sleepers() == 2, within_s=60, what="both to run")
        os.kill(starter.process_id, signal.SIGTERM)
        until(lambda: sleepers() == 0, within_s=30, what="both to be gone")
