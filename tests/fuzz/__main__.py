"""`python -m tests.fuzz [target ...] [--runs N]`: runs each target under atheris, one after the other.

Prints for each: executions, CPU time, how much the coverage grew, and findings (as hex, ready for `regressions.py`).
Inputs live in a temporary directory, which is gone afterwards. The exit code is the number of targets with a finding.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from tests.fuzz.targets import TARGETS

#: A target's input may take this long, and its process this much memory.
TIMEOUT_S = 20
MEMORY_MB = 1024


def run_here(name: str, corpus: str, findings: str, runs: int) -> None:
    """One target in this process, which ends with it."""
    import atheris

    # What is damaged is logged, and everything is damaged here.
    logging.getLogger("semel").setLevel(logging.CRITICAL + 1)
    module, watched = TARGETS[name]
    with atheris.instrument_imports(include=list(watched)):
        target = import_module(f"tests.fuzz.{module}").TARGET
    for number, seed in enumerate(target.seeds()):
        Path(corpus, f"seed-{number:05}").write_bytes(seed)
    if target.prepare is not None:
        target.prepare(atheris.instrument_func)
    arguments = [
        f"-runs={runs}",
        f"-max_len={target.max_bytes}",
        f"-timeout={TIMEOUT_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={findings}/",
        "-print_final_stats=1",
        "-verbosity=1",
        "-use_value_profile=0",
    ]
    atheris.Setup([sys.argv[0], *arguments, corpus], target.one)
    atheris.Fuzz()


def run(name: str, runs: int) -> bool:
    """One target in a process of its own. Returns whether it found nothing."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        corpus, findings = Path(place, "corpus"), Path(place, "findings")
        corpus.mkdir()
        findings.mkdir()
        before, began = _cpu_s(), time.monotonic()
        command = [sys.executable, "-m", "tests.fuzz", name, "--here", place, "--runs", str(runs)]
        with subprocess.Popen(
            command,
            stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE,
            text=True,
            cwd=place,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([os.getcwd(), os.path.join(os.getcwd(), "src")]),
            },
        ) as process:
            assert process.stdout is not None
            try:
                said = process.stdout.read()
            except BaseException:
                process.kill()
                raise
        executed = re.findall(r"stat::number_of_executed_units:\s*(\d+)", said) or re.findall(r"^#(\d+)", said, re.M)
        covered = re.findall(r" cov: (\d+)", said) or ["0"]
        found = sorted(findings.iterdir())
        is_well = process.returncode == 0 and not found
        print(
            f"{name:12} {int(executed[-1]) if executed else 0:>10,} executions  {_cpu_s() - before:7.0f} s CPU  "
            f"{time.monotonic() - began:6.0f} s  {covered[0]} -> {covered[-1]} edges  "
            f"{'nothing found' if is_well else 'FINDING'}",
            flush=True,
        )
        if not is_well:
            print("\n".join(line for line in said.splitlines() if not re.match(r"#\d+\s", line))[-4000:])
            for path in found:
                print(f"{path.name}: {path.read_bytes().hex()}", flush=True)
    return is_well


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"of: {', '.join(TARGETS)}")
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = [name for name in given.targets if name not in TARGETS]
    if unknown:
        print(f"no target named {', '.join(unknown)}; there are: {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    # Whoever ends this ends the target, too, and its directory is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if given.here:
        run_here(given.targets[0], f"{given.here}/corpus", f"{given.here}/findings", given.runs)
        return 0
    return sum([not run(name, given.runs) for name in given.targets or TARGETS])


if __name__ == "__main__":
    sys.exit(main())
