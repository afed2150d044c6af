"""Nothing is left running when a program dies that has started brokers, however it dies.

A small process holds the other end of a pipe. When the pipe ends without a word, the program is gone: the processes
that it has named and not taken back are stopped, first in order, then by force.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

#: How long processes have to stop in order.
PATIENCE_S = 10

_PROGRAM = f"""
import os, signal, sys, time
here = set()
for line in sys.stdin:
    number = int(line)
    here.add(number) if number > 0 else here.discard(-number)

def tell(signal_number):
    for number in list(here):
        try:
            os.kill(number, signal_number)
        except OSError:
            here.discard(number)

tell(signal.SIGCONT)
tell(signal.SIGTERM)
deadline = time.monotonic() + {PATIENCE_S}
while here and time.monotonic() < deadline:
    time.sleep(0.1)
    tell(0)
tell(signal.SIGKILL)
"""


class Watchdog:
    """Started with the first process that is named."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, process_id: int) -> None:
        """This process ends with ours."""
        if self._process is None:
            # A session of its own: Ctrl-C is for the program, which stops its processes in order.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM], stdin=subprocess.PIPE, start_new_session=True
            )
        self._say(process_id)

    def forget(self, process_id: int) -> None:
        """This process has ended; its number may be another's soon."""
        if self._process is not None:
            self._say(-process_id)

    def close(self) -> None:
        """Every process was taken back, or is to end now."""
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE_S + 5)
            self._process = None

    def _say(self, number: int) -> None:
        assert self._process is not None and self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(b"%d\n" % number)
            self._process.stdin.flush()
