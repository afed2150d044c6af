"""`python -m tests.cluster.jepsen --seconds 60`: the cluster under fire, on machines of its own."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from tests.cluster.jepsen.run import Run
from tests.support.network import secluded, why_no_networks


def main() -> int:
    parser = argparse.ArgumentParser(description="A cluster of four brokers and three ZooKeeper nodes under fire.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--directory", type=Path, help="where data and logs stay; else they go at the end")
    parser.add_argument("--fault", action="append", default=[], help="only this one; may be given several times")
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cannot = "" if options.inside else why_no_networks()
    if cannot:
        print(f"networks cannot be cut here ({cannot}): everything else is done", flush=True)
    elif not options.inside:
        arguments = [*sys.argv[1:], "--seed", str(options.seed), "--inside"]
        command = secluded([sys.executable, "-m", "tests.cluster.jepsen", *arguments])
        os.execvp(command[0], command)
    print(f"seed {options.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    if options.directory is not None:
        options.directory.mkdir(parents=True, exist_ok=True)
        return fire(options, options.directory)
    with tempfile.TemporaryDirectory(prefix="jepsen-") as directory:
        return fire(options, Path(directory))


def fire(options: argparse.Namespace, directory: Path) -> int:
    run = Run(directory, options.seed, spark=not options.no_spark, cuts=options.inside)
    try:
        run.start()
        run.fire(options.seconds, options.fault)
        run.settle()
        run.finish()
    except BaseException:
        traceback.print_exc()
        for failure in run.record.failures:
            traceback.print_exception(failure)
        print(run.diagnosis(), flush=True)
        return 1
    finally:
        print(run.report(), flush=True)
        run.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
