"""What a pipeline has open on the driver: the connection to the output's cluster, the transaction, the claim server.

Guarantees: `open` either returns with everything open, or raises with nothing left open; `close` closes all of it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Any

from semel.client.blocking.loop_thread import LoopThread
from semel.config import ConfigError
from semel.machines.pipeline.driver_transaction import DriverTransaction

from .claims import ClaimServer
from .connections import RESTART_PATIENCE_MS, connect
from .kafka_options import ClientSettings
from .limits import is_compacted
from .preflight import PipelineMistake
from .transaction_client import TransactionClient

#: Spark's setting for the port that tasks ask for claims at, where the argument `claim_port` is not given.
CLAIM_PORT = "spark.semel.claims.port"


class DriverSide:
    """The driver's end of a pipeline."""

    def __init__(
        self,
        spark: Any,
        settings: ClientSettings,
        transactional_id: str,
        *,
        timeout_ms: int,
        step_ms: int,
        claim_port: int | None,
        group_id: str | None = None,
    ) -> None:
        port = _port(spark, claim_port)
        self.loop = LoopThread("semel-pipeline")
        try:
            try:
                self.cluster = self.loop.run(connect(settings, patience_ms=RESTART_PATIENCE_MS))
            except ConfigError as error:
                raise PipelineMistake(f"kafka: {error}") from None
            self.transaction = DriverTransaction(transactional_id, group_id or transactional_id, timeout_ms=timeout_ms)
            self.client = TransactionClient(self.cluster, self.transaction, deadline_ms=step_ms)
            self.claims = _claim_server(spark, port, self._join_transaction)
        except BaseException:
            self.loop.close()
            raise

    def keep_progress(self, marker_topic: str | None, outputs: Iterable[str] = ()) -> str | None:
        """Keep progress in `marker_topic` for good, if that is a compacted topic. Returns it if it is one."""
        if marker_topic is None or not self.loop.run(is_compacted(self.cluster, marker_topic)):
            return None
        if marker_topic in outputs:
            raise PipelineMistake(
                f"marker_topic='{marker_topic}' is compacted and an output too: give progress a topic of its own"
            )
        self.client.keep_progress_in(marker_topic)
        return marker_topic

    def _join_transaction(self, topic: str, partition: int) -> None:
        if not self.transaction.implicit_add:
            self.loop.run(self.client.add_partition(topic, partition))

    def close(self) -> None:
        self.claims.close()
        self.loop.run(self.cluster.close())
        self.loop.close()


def _port(spark: Any, claim_port: int | None) -> int:
    text = spark.conf.get(CLAIM_PORT, "0") if claim_port is None else str(claim_port)
    if not text.isdecimal() or int(text) > 65_535:
        name = CLAIM_PORT if claim_port is None else "claim_port"
        raise PipelineMistake(f"{name}={text}: must be a port, or 0 for any that is free")
    return int(text)


def _claim_server(spark: Any, port: int, on_claim: Any) -> ClaimServer:
    host = spark.conf.get("spark.driver.host", "127.0.0.1")
    try:
        return ClaimServer(host, on_claim, spark.conf.get("spark.driver.bindAddress", host), port)
    except OSError as error:
        if not port or error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise PipelineMistake(
            f"claim_port={port} cannot be used: {error.strerror}. Each pipeline of a driver needs one of its own"
        ) from None
