"""What the log says about connections that the broker closes.

Guarantees:

- A second has a bounded number of lines, however many connections are closed: a port scan does not fill the disk. What
  was left out is counted in a line of its own.
- A client that speaks TLS where it is not spoken, or does not where it is, makes a warning with what to set, and so
  does one for which no file descriptor is left; one in a minute for each listener. Everything else is on level info: a
  scanner is not worth more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from semel.broker.net.framing import TLS_WITHOUT_TLS
from semel.broker.net.tls import REQUEST_WITHOUT_TLS

if TYPE_CHECKING:
    from semel.broker.net.connection import ServerConnection
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)

LINES_PER_SECOND = 20
#: How long a listener gives no second hint, in seconds.
HINT_PAUSE_S = 60.0
FEW_DESCRIPTORS = "the file descriptors left are for files: raise the limit (ulimit -n), or set max.connections"
_HINTED = (TLS_WITHOUT_TLS, REQUEST_WITHOUT_TLS, FEW_DESCRIPTORS)


class Refusals:
    """Writes the lines of one broker."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        self._written = self._left_out = 0
        self._is_counting = False
        #: When each listener gave its last hint.
        self._hinted_s: dict[str, float] = {}

    def refused(self, connection: ServerConnection, why: str) -> None:
        """A connection is closed for this reason."""
        self._broker.metrics.refused += 1
        if why in _HINTED and self._may_hint(connection.listener_name):
            logger.warning("listener %s: closing %s:%d: %s", connection.listener_name, *connection.peer, why)
            return
        if not logger.isEnabledFor(logging.INFO):
            return
        if not self._is_counting:
            self._is_counting = True
            self._broker.loop.call_later(1.0, self._end_second)
        if self._written >= LINES_PER_SECOND:
            self._left_out += 1
            return
        self._written += 1
        logger.info("closing %s:%d: %s", *connection.peer, why)

    def _may_hint(self, listener_name: str) -> bool:
        now_s = self._broker.loop.time()
        before_s = self._hinted_s.get(listener_name)
        if before_s is not None and now_s - before_s < HINT_PAUSE_S:
            return False
        self._hinted_s[listener_name] = now_s
        return True

    def _end_second(self) -> None:
        left_out, self._left_out = self._left_out, 0
        self._written = 0
        self._is_counting = False
        if left_out:
            logger.info("closed %d more connections in the last second", left_out)
