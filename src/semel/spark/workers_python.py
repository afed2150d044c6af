"""The Python that Spark's workers run: it has to be one that has this package.

Guarantees: on one machine a session whose workers could not import the package is refused at once. Spark would say so
in a stack trace of a worker when the first source is loaded.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from typing import Any

from .preflight import PipelineMistake

#: A Python that cannot be asked in this time may still be the right one, on a busy machine.
_PATIENCE_S = 30.0


def require_workers_python(spark: Any) -> None:
    """Refuse a session on this machine whose workers have no semel. Of those of a cluster nothing is known here."""
    context = spark.sparkContext
    if str(context.master).startswith("local") and (why := _why_not(str(context.pythonExec), sys.executable)):
        raise PipelineMistake(
            f"Spark's Python workers run '{context.pythonExec}', {why}: set PYSPARK_PYTHON={sys.executable} in the "
            "environment before the session is made"
        )


@functools.cache
def _why_not(python: str, own: str) -> str | None:
    found = shutil.which(python)
    if found is None:
        return "which is not there"
    if os.path.dirname(os.path.abspath(found)) == os.path.dirname(own):
        return None  # python and python3 of one environment
    try:
        ended = subprocess.run([found, "-c", "import semel"], capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"which is {found} and cannot import semel" if ended.returncode else None
