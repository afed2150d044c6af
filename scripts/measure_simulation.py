"""How fast the simulation is: one broker, about 20 clients, about 50 requests in a simulated second, with faults.

`python scripts/measure_simulation.py [--rounds 3] [--profile]`. Each seed is played several times and the fastest round
counts, because a busy machine takes CPU time too. The time of a fixed piece of Python is printed beside it: with it
figures of two machines, or of two hours, can be compared.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
import time

MIX = ("copying-cooperative", "idempotent", "timeouts", "transfers", "two-phase", "zombies")
SEEDS = range(4)
DURATION_S = 60.0


def yardstick_ms() -> float:
    """What a fixed piece of Python takes."""
    began = time.process_time()
    kept: dict[int, tuple[int, str]] = {}
    for number in range(60_000):
        kept[number & 255] = (number, str(number))
        kept.get(number & 127)
    return (time.process_time() - began) * 1000


def main() -> None:
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    from semel.simulation.play import Play
    from semel.simulation.runs import draw_plan, run
    from semel.simulation.workloads import WORKLOADS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    plans = [draw_plan(seed, workloads=MIX, duration_s=DURATION_S) for seed in SEEDS]
    run(draw_plan(0, workloads=MIX, duration_s=2))  # what is imported and compiled at the first use
    if options.profile:
        profile = cProfile.Profile(time.process_time)
        result = profile.runcall(run, plans[2])
        print(f"{result.requests} requests")
        pstats.Stats(profile).sort_stats("tottime").print_stats(60)
        return
    simulated_s = cpu_s = requests = clients = callbacks = 0.0
    yardsticks = []
    for plan in plans:
        play = Play(plan)
        for name in MIX:
            WORKLOADS[name](play)
        clients += len(play.actors)
        play.world.loop.close()
        results = []
        for _ in range(options.rounds):
            yardsticks.append(yardstick_ms())
            results.append(run(plan))
            assert not results[-1].violations, results[-1].command
        best = min(results, key=lambda one: one.cpu_s)
        simulated_s, cpu_s = simulated_s + best.simulated_s, cpu_s + best.cpu_s
        requests, callbacks = requests + best.requests, callbacks + best.callbacks
    us = cpu_s / requests * 1e6
    print(f"{clients / len(plans):.0f} clients, {requests / simulated_s:.0f} requests per simulated second")
    print(f"{simulated_s / cpu_s:.0f} simulated hours per CPU hour; at 50 requests per second {1e6 / us / 50:.0f}")
    print(f"{us:.0f} us of CPU and {callbacks / requests:.1f} callbacks for a request")
    print(f"the yardstick took {min(yardsticks):.1f} ms at best, {max(yardsticks):.1f} ms at worst")


if __name__ == "__main__":
    main()
