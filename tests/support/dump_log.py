"""Apache Kafka's own reader of data directories, as a judge of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests.support import java_tools

KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")

#: It writes a line for each record: after 20 minutes of a cluster under fire that are very many, and the machine may be
#: busy with other things.
MOST_S = 600

#: Words that DumpLogSegments uses for what is wrong; it ends with 0 even then.
_COMPLAINT = re.compile(
    r"isvalid: false|mismatch|out of order|is followed by|corrupt|exception|failed|do not match|not found", re.I
)
#: What it says of nothing wrong: a segment whose first offset is not 0 follows "-1", and logging is not set up.
_NOISE = re.compile(r"^\s*-1 is followed by |^SLF4J")
_GAP = re.compile(r" is followed by ")


def dump(files: Iterable[Path], *options: str) -> str:
    """What DumpLogSegments says of the files; where it gives up, that is in its words too."""
    names = ",".join(str(path) for path in files)
    done = java_tools.run("dump-log", "--files", names, *options, timeout_s=MOST_S, check=False)
    return done.stdout + done.stderr


def files_of(data: Path, *kinds: str) -> list[Path]:
    """Files of these kinds in every partition directory; an empty index is left out, there is nothing to say of it."""
    found = [path for path in sorted(data.glob("*-*/*")) if path.suffix in (kinds or KINDS)]
    return [path for path in found if path.suffix == ".log" or path.stat().st_size > 0]


def complaints(*data: Path, gaps: bool = True) -> list[str]:
    """Everything Kafka finds wrong in data directories: batches (deep), indexes, transaction indexes, snapshots.

    `gaps=False` for a compacted log, where offsets are rightly missing.
    """
    found = []
    for one in data:
        said = dump(files_of(one), "--deep-iteration")
        said += dump(files_of(one, ".index", ".timeindex"), "--index-sanity-check")
        found += [line for line in said.splitlines() if _COMPLAINT.search(line) and not _NOISE.search(line)]
    return found if gaps else [line for line in found if not _GAP.search(line)]
