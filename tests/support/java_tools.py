"""Apache Kafka's own tools, run from its jars.

`run` waits for the end, `start` hands back the running process. A test's JVM is made for a quick start and little
memory; a bench asks for `jvm=FULL`, which is how Kafka's own scripts would run the same tool.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import Process
from tests.support.requirements import class_archive, kafka_libs

TOOLS = {
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "producer-performance": "org.apache.kafka.tools.ProducerPerformance",
    "consumer-performance": "org.apache.kafka.tools.ConsumerPerformance",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "acls": "org.apache.kafka.tools.AclCommand",
    "configs": "kafka.admin.ConfigCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
    "delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "storage": "kafka.tools.StorageTool",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "end-to-end-latency": "org.apache.kafka.tools.EndToEndLatency",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
}

#: Compiles at once and not well.
QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
QUICK = ("-Xmx256m", "-XX:+UseSerialGC", QUICK_COMPILER, "-Xshare:auto")
FULL = ("-Xmx512m", "-XX:+UseG1GC", "-Xshare:auto")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a tool ended and what it said."""

    tool: str
    exit_code: int
    stdout: str
    stderr: str

    def __str__(self) -> str:
        return f"{self.tool} ended with {self.exit_code}\n{self.stdout[-3000:]}\n{self.stderr[-3000:]}"


def command(tool: str, arguments: Sequence[object], *, jvm: Sequence[str] = QUICK) -> list[str]:
    """The command line of a tool: one of the names above, or any class name."""
    return [
        "java",
        *jvm,
        *_shared_classes(jvm),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        f"{kafka_libs()}/*",
        TOOLS.get(tool, tool),
        *(str(argument) for argument in arguments),
    ]


def _shared_classes(jvm: Sequence[str]) -> tuple[str, ...]:
    """For a JVM that is made for a quick start: the classes that it would load, ready to be mapped."""
    if QUICK_COMPILER not in jvm or not class_archive().exists():
        return ()
    # If it is of another JVM or other jars it is passed by, without a word among what the tool says.
    return (f"-XX:SharedArchiveFile={class_archive()}", "-Xlog:disable", "-Xlog:all=error:stderr")


def run(
    tool: str,
    *arguments: object,
    stdin: str | bytes | None = None,
    timeout_s: float = 50.0,
    check: bool = True,
    jvm: Sequence[str] = QUICK,
) -> ToolResult:
    """Runs a tool to its end. With `check`, an exit code other than 0 is an AssertionError with all it said."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        done = subprocess.run(
            command(tool, arguments, jvm=jvm),
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            timeout=timeout_s,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"").decode(errors="replace") + (late.stderr or b"").decode(errors="replace")
        raise AssertionError(f"{tool} did not end within {timeout_s:g} s\n{said[-3000:]}") from None
    result = ToolResult(
        tool, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )
    if check and result.exit_code != 0:
        raise AssertionError(str(result))
    return result


def start(tool: str, *arguments: object, jvm: Sequence[str] = QUICK, output: Path | None = None) -> Process:
    """Starts a tool and hands back its process: standard output in `output()`, errors apart in `errors()`."""
    return Process(command(tool, arguments, jvm=jvm), name=tool, output=output, separate_stderr=True)
