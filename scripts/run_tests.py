"""run_tests.py WORKERS: every test. Spark's run beside the others: the one half computes while the other one waits.

Spark's tests get processes of their own: a JVM's callbacks do not share one with thousands of other tests. What they
print comes at the end, after what the others print; it is in .cache/spark-tests.log meanwhile. The last lines name the
tests that failed, because a long log is often kept by its end. The exit code is 1 if any test failed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
LOG = CHECKOUT / ".cache" / "spark-tests.log"
#: tests/conftest.py appends the names of the tests that failed to the file that this variable names.
FAILED = "SEMEL_FAILED_TESTS"


def main() -> int:
    """Run both parts, and say how each ended."""
    # tests/conftest.py puts the files that take long first; xdist would put those with many tests there.
    pytest = [sys.executable, "-m", "pytest", "-n", sys.argv[1], "--dist", "loadfile", "--no-loadscope-reorder"]
    print(f"Spark's tests run beside the others; they print to {LOG}", flush=True)
    return run([*pytest, "--ignore", "tests/spark"], [*pytest, "tests/spark"], LOG)


def run(others: list[str], spark: list[str], log: Path) -> int:
    """Run both commands at the same time, and print what the second one said when both have ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended, too
    began, codes, took_s = time.monotonic(), {}, {}
    log.parent.mkdir(exist_ok=True)
    failed = log.with_suffix(".failed")
    failed.write_text("")
    environment = {**os.environ, FAILED: str(failed)}
    with log.open("wb") as said:
        parts = {
            "Spark's tests": subprocess.Popen(
                spark, cwd=CHECKOUT, stdout=said, stderr=subprocess.STDOUT, env=environment
            ),
            "the others": subprocess.Popen(others, cwd=CHECKOUT, env=environment),
        }
        try:
            while len(codes) < len(parts):
                for name in parts.keys() - codes.keys():
                    code = parts[name].poll()
                    if code is not None:
                        codes[name], took_s[name] = code, time.monotonic() - began
                time.sleep(0.2)
        finally:
            for part in parts.values():
                if part.poll() is None:
                    part.terminate()
                    part.wait()
    print(log.read_text(errors="replace"), flush=True)
    for name, code in codes.items():
        outcome = "passed" if code == 0 else f"failed (exit code {code})"
        print(f"{name}: {outcome}, {took_s[name] / 60:.1f} minutes")
    print(failed.read_text(errors="replace"), end="", flush=True)
    return int(any(codes.values()))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
