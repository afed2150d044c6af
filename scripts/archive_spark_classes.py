"""archive_spark_classes.py FILE: Spark's classes as the JVM has them after loading, so that it starts in half the time.

The JVM of a short Spark job spends most of its CPU on reading and checking some fifteen thousand classes. Here the
pipeline of the demo runs once with a few payments, and the JVM writes what it has loaded into an archive (class data
sharing). The demo and the tests give the file to their JVMs. It only saves time: a JVM that cannot use it goes on
without.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import semel

CHECKOUT = Path(__file__).resolve().parents[1]
_DEADLINE_S = 600


def main() -> int:
    """Run the pipeline, wait until its JVM has written the archive, and put it in place."""
    wanted = Path(sys.argv[1]).resolve()
    print(f"archiving Spark's classes in {wanted} (once)", flush=True)
    spec = importlib.util.spec_from_file_location("demo", CHECKOUT / "examples" / "demo.py")
    assert spec is not None and spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    wanted.parent.mkdir(parents=True, exist_ok=True)
    unfinished = wanted.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="semel-classes-") as folder, semel.Broker(Path(folder) / "data") as broker:
        demo.create_topics(broker.bootstrap_servers)
        demo.produce_payments(broker.bootstrap_servers, 200)
        command = [sys.executable, str(CHECKOUT / "examples" / "balances_pipeline.py")]
        command += ["--bootstrap", broker.bootstrap_servers, "--checkpoint", str(Path(folder) / "checkpoint")]
        command += ["--per-batch", "100", f"--java-options=-XX:ArchiveClassesAtExit={unfinished} -Xlog:cds=off"]
        run = subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            # The JVM holds this pipe: its end is the end of the JVM, which outlives Python to write the archive.
            errors = run.communicate(timeout=_DEADLINE_S)[1]
            if run.returncode:
                print(errors[-4000:], file=sys.stderr)
        finally:
            _end_group(run.pid)
    if run.returncode or not unfinished.exists():
        print("note: there is no archive of Spark's classes: Spark starts as slowly as ever", file=sys.stderr)
        return 1
    unfinished.rename(wanted)
    return 0


def _end_group(process_id: int) -> None:
    """Wait a moment for the process group to end by itself, then end it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.killpg(process_id, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.killpg(process_id, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
