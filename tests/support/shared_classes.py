"""`python -m tests.support.shared_classes`: an archive of the classes that Apache Kafka and its tools load.

A JVM that maps it (class data sharing) starts in half the CPU time, and the tests start hundreds. The classes are those
that a broker and some tools load while they are used. Without the archive everything works, slower; an archive of
another JVM is not used.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import java_tools
from tests.support.apache_kafka import SMALL_JVM, ApacheKafka
from tests.support.requirements import class_archive

TIMEOUT_S = 180


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="shared-classes-") as place:
        lists = _use_everything(Path(place))
        names = dict.fromkeys(line for path in lists for line in path.read_text().splitlines() if line[:1] != "#")
        everything = Path(place, "all.classes")
        everything.write_text("".join(f"{name}\n" for name in names))
        made = Path(place, "classes.jsa")
        dump = (*java_tools.QUICK[:2], "-Xshare:dump", "-Xlog:disable", f"-XX:SharedArchiveFile={made}")
        subprocess.run(
            java_tools.command("unused", [], jvm=(*dump, f"-XX:SharedClassListFile={everything}"))[:-1],
            timeout=TIMEOUT_S, check=True,
        )  # fmt: skip
        # At once: another run of the tests may be looking for it.
        beside = class_archive().with_suffix(".new")
        beside.write_bytes(made.read_bytes())
        beside.replace(class_archive())
        print(f"{len(names):,} classes of Apache Kafka are in {class_archive()}")
    return 0


def _use_everything(place: Path) -> list[Path]:
    """Run a broker and tools; the files that list what each has loaded."""
    lists: list[Path] = []

    def listing(jvm: tuple[str, ...]) -> tuple[str, ...]:
        lists.append(place / f"{len(lists)}.classes")
        return (*jvm, f"-XX:DumpLoadedClassList={lists[-1]}")

    with ApacheKafka(jvm=listing(SMALL_JVM)) as kafka:
        at = ("--bootstrap-server", kafka.bootstrap_servers)
        for tool, *arguments in (
            ("topics", *at, "--create", "--topic", "t", "--partitions", 2),
            ("console-producer", *at, "--topic", "t"),
            ("console-consumer", *at, "--topic", "t", "--from-beginning", "--max-messages", 1, "--group", "g",
             "--timeout-ms", 30_000),
            ("consumer-groups", *at, "--describe", "--all-groups"),
            ("producer-performance", *at, "--topic", "t", "--num-records", 100, "--record-size", 10, "--throughput", -1,
             "--transactional-id", "id", "--transaction-duration-ms", 10),
            ("storage", "format", "-t", "c2VtZWwtdGVzdC1rYWZrYQ", "-c", kafka.directory / "server.properties",
             "--ignore-formatted"),
        ):  # fmt: skip
            java_tools.run(
                tool, *arguments, stdin="one\n", jvm=listing(java_tools.QUICK), check=False, timeout_s=TIMEOUT_S
            )
        kafka.stop()
    return [path for path in lists if path.exists()]


if __name__ == "__main__":
    sys.exit(main())
