"""Which failures of a micro-batch would come again however often it is tried, told from what Spark reports.

Guarantees: only what is certain is taken for hopeless: values that the query's own SQL cannot take, programming errors
of the query's own Python code, and records that are gone. All else may be a fault that passes (a worker that died, a
service that did not answer, an error of our own code), and is tried again.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from semel.machines.pipeline.claims import RowRefused

from .preflight import PipelineMistake
from .range_reader import DataLost


class SourceFailed(RuntimeError):
    """The source could not find out what there is to read: the brokers are away, or refuse it. A restart goes on."""


class BatchFailed(RuntimeError):
    """A micro-batch, or a load, failed as often as `attempts` allows. The first error is the `__cause__`."""


#: Errors of Python that say that the code or the row is wrong. Not OSError and RuntimeError: they may pass.
CODING_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NameError, NotImplementedError, TypeError, ValueError,
)  # fmt: skip

_NAMES = frozenset(
    {
        *(kind.__name__ for kind in CODING_ERRORS),
        "FloatingPointError", "IndexError", "KeyError", "OverflowError", "UnboundLocalError", "UnicodeDecodeError",
        "UnicodeEncodeError", "ZeroDivisionError", "decimal.InvalidOperation", "json.decoder.JSONDecodeError",
        "pyarrow.lib.ArrowInvalid", "pyarrow.lib.ArrowTypeError", "pyspark.errors.exceptions.base.PySparkTypeError",
        "pyspark.errors.exceptions.base.PySparkValueError",
    }
)  # fmt: skip

_FRAME = re.compile(r'^ +File "(?P<file>[^"]*)", line (?P<line>\d+)', re.MULTILINE)
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<why>.*))?$", re.MULTILINE)
#: What `DataLost` says of records that are gone for good. Of a log that gives nothing for long it says another thing.
_DATA_LOST = re.compile(r"\bsemel\.spark\.range_reader\.DataLost: (?P<why>(?!.*: nothing came from ).*)")

#: How Spark names an error of a Python source that plans.
_SOURCE_FAILED = "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR"
_OUR_ERROR = re.compile(r"^semel(?:\.\w+)*\.(?P<type>\w+): (?P<why>.*)", re.MULTILINE)

#: A frame of our own package, which may fail for reasons that pass.
_OURS = re.compile(r"[/\\]semel[/\\](spark|client|records|wire|machines|config|net)[/\\]")
_INSTALLED = re.compile(r"[/\\](site-packages|lib[/\\]python[\d.]+)[/\\]|^<frozen|\.pyx$")

#: What Spark could not do with a value, and `raise_error`. Class 42, a missing table or file, may pass.
_DATA_EXCEPTION, _RAISED_BY_THE_QUERY = "22", "P0001"

_WHAT_TO_DO = (
    "Nothing of this micro-batch became visible. Correct the query, or take such rows out before (where, dead_letters)"
)


def hopeless(error: Exception) -> Exception | None:
    """The error to end the query with at once; None if another try may succeed."""
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException):
        return None
    text = str(error)
    if lost := data_lost_in(text):
        return DataLost(lost)
    if "Traceback (most recent call last)" in text:
        why = coding_error_in(text)
        return None if why is None else RowRefused(f"the query's own code raised {why}. {_WHAT_TO_DO}")
    state = error.getSqlState() or ""
    if state.startswith(_DATA_EXCEPTION) or state == _RAISED_BY_THE_QUERY:
        first_line = text.strip().partition("\n")[0].removesuffix(f" SQLSTATE: {state}").rstrip(".")
        return RowRefused(f"the query cannot take a row: {first_line}. {_WHAT_TO_DO}")
    return None


def coding_error_in(text: str) -> str | None:
    """The programming error that ended a Python worker, and where; None if it was another error, or in our code.

    >>> coding_error_in('Traceback (most recent call last):\\n  File "/jobs/shout.py", line 3, in f\\nKeyError: 7')
    'KeyError: 7 (shout.py:3)'
    >>> coding_error_in('Traceback (most recent call last):\\n  File "/jobs/shout.py", line 3, in f\\nOSError: no')
    """
    frames = list(_FRAME.finditer(text))
    if not frames or any(_OURS.search(frame["file"]) for frame in frames):
        return None
    found = _ERROR.search(text, frames[-1].end() + 1)
    if found is None or found["type"] not in _NAMES:
        return None
    own = [frame for frame in frames if not _INSTALLED.search(frame["file"])] or frames
    place = f"{PurePath(own[-1]['file']).name}:{own[-1]['line']}"
    return f"{found['type'].rpartition('.')[2]}: {found['why'] or 'without words'} ({place})"


def in_words(error: Exception) -> str:
    """What happened, on one line: of a worker's stack trace the error and the line of the query that raised it.

    >>> in_words(ValueError("not this\\nbut more"))
    'ValueError: not this'
    """
    text = str(error).strip()
    frames = list(_FRAME.finditer(text)) if _is_of_spark(error) else []
    found = _ERROR.search(text, frames[-1].end() + 1) if frames else None
    if found is None:
        first, kind = text.partition("\n")[0].rstrip(";"), type(error)
        return first if first and kind.__module__.startswith(("semel.", "pyspark.")) else f"{kind.__name__}: {first}"
    own = [frame for frame in frames if not _INSTALLED.search(frame["file"]) and not _OURS.search(frame["file"])]
    place = f" ({PurePath(own[-1]['file']).name}:{own[-1]['line']})" if own else ""
    return f"{found['type'].rpartition('.')[2]}: {found['why'] or 'without words'}{place}"


def _is_of_spark(error: Exception) -> bool:
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException)


def after_attempts(error: Exception, what: str, attempts: int) -> Exception:
    """The error of a batch that was tried so often: one of Spark's has a stack trace for its text."""
    if not _is_of_spark(error):
        return error
    failed = f"failed in all of its {attempts} attempts; the first error" if attempts > 1 else "failed"
    return BatchFailed(f"{what} {failed}: {in_words(error)}")


def data_lost_in(text: str) -> str | None:
    """What a task or the planner of our source said about records that are gone, within Spark's words.

    >>> data_lost_in("semel.spark.range_reader.DataLost: payments-0: offset 3 is gone, the log starts at 7.")
    'payments-0: offset 3 is gone, the log starts at 7.'
    """
    found = _DATA_LOST.search(text)
    return found["why"].strip() if found else None


def source_failure(text: str) -> Exception | None:
    """What our source said when it planned a micro-batch, within Spark's words. It runs in a process of Spark's.

    >>> source_failure(f"[{_SOURCE_FAILED}] Traceback\\nsemel.spark.source_options.OptionError: startingOffsets says")
    PipelineMistake('the source: startingOffsets says')
    """
    if _SOURCE_FAILED not in text:
        return None
    if lost := data_lost_in(text):
        return DataLost(lost)
    found = list(_OUR_ERROR.finditer(text))
    if not found:
        return None
    kind, why = found[-1]["type"], found[-1]["why"].strip()
    return PipelineMistake(f"the source: {why}") if kind == "OptionError" else SourceFailed(f"the source: {why}")


def failed_function(name: str, error: Exception) -> RowRefused:
    """The error for a programming error of an output's function, which runs on the driver."""
    return RowRefused(f"the function of output '{name}' raised {type(error).__name__}: {error}. {_WHAT_TO_DO}")
