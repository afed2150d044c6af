"""Timers of the producer and the wall clock, which somebody may set."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from semel.client.producer.producer import AsyncProducer
from semel.environment import MACHINE

HOUR_MS = 3_600_000


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, HOUR_MS], ids=["back", "forward"])
def test_a_record_that_waits_is_sent_in_time_although_the_clock_is_set(
    bootstrap: str, name: str, jump_ms: int
) -> None:
    """Set back, the wall clock would let it wait for an hour; set forward, its delivery.timeout.ms would be over."""
    error_ms = 0
    environment = dataclasses.replace(MACHINE, now_ms=lambda: MACHINE.now_ms() + error_ms)

    async def send_one() -> int:
        nonlocal error_ms
        config = {"bootstrap.servers": bootstrap, "linger.ms": 300}
        async with AsyncProducer(config, environment=environment) as producer:
            await (await producer.send(name, "now there is a topic and an identity"))
            waiting = await producer.send(name, "waits for linger.ms")
            error_ms = jump_ms
            async with asyncio.timeout(60):
                return (await waiting).offset

    assert asyncio.run(send_one()) == 1
