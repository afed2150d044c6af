"""Rates and buckets as Kafka's quotas measure them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semel.machines.quota_rates import SampledRate, TokenBucket, Windows

ELEVEN = Windows(11, 1000)


def test_a_burst_is_judged_by_its_average_over_all_whole_windows() -> None:
    rate = SampledRate(ELEVEN)
    rate.record(10_000, 0)
    assert rate.wait_ms(1000, 0) == 0
    rate.record(5_000, 0)
    assert rate.wait_ms(1000, 0) == 5_000


def test_waiting_as_long_as_told_is_enough() -> None:
    rate = SampledRate(ELEVEN)
    rate.record(15_000, 0)
    wait_ms = rate.wait_ms(1000, 0)
    rate.record(0, wait_ms)
    assert rate.wait_ms(1000, 10_000) <= 5_000
    assert rate.wait_ms(1000, 11_000) == 0


def test_what_is_older_than_the_windows_is_forgotten() -> None:
    rate = SampledRate(ELEVEN)
    rate.record(1_000_000, 0)
    assert not rate.is_idle(10_999)
    assert rate.is_idle(11_000)
    rate.record(10_000, 11_000)
    assert rate.wait_ms(1000, 11_000) == 0


def test_what_was_counted_can_be_taken_back() -> None:
    rate = SampledRate(ELEVEN)
    rate.record(9_000, 0)
    rate.record(5_000, 100)
    assert rate.wait_ms(1000, 100) > 0
    rate.record(-5_000, 100)
    assert rate.wait_ms(1000, 100) == 0


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 10_000)), max_size=60), st.integers(1, 5000))
def test_a_client_that_waits_when_told_stays_within_its_quota(steps: list[tuple[int, int]], allowed: int) -> None:
    rate, now_ms, sent = SampledRate(ELEVEN), 0, 0
    largest = 0
    for pause_ms, amount in steps:
        now_ms += pause_ms
        rate.record(amount, now_ms)
        sent, largest = sent + amount, max(largest, amount)
        now_ms += rate.wait_ms(allowed, now_ms)
    # Ten windows' worth and one request may come at once; from there on the rate is what is allowed, twice over at
    # most, since what has left the windows is forgotten whole.
    assert sent <= 2 * (allowed * (10 + now_ms / 1000) + largest) + allowed


def test_a_bucket_may_be_overdrawn_once_and_the_debt_is_waited_for() -> None:
    bucket = TokenBucket(ELEVEN, 2.0, 0)
    assert bucket.is_idle(0)
    bucket.record(22, 0)
    assert bucket.wait_ms(0) == 0
    bucket.record(10, 0)
    assert bucket.wait_ms(0) == 5_000
    assert bucket.wait_ms(4_000) == 1_000
    assert bucket.wait_ms(5_000) == 0
    assert not bucket.is_idle(15_999)
    assert bucket.is_idle(16_000)


def test_a_clock_that_goes_back_fills_nothing() -> None:
    bucket = TokenBucket(ELEVEN, 1.0, 1_000)
    bucket.record(12, 1_000)
    assert bucket.wait_ms(0) == 1_000
    rate = SampledRate(ELEVEN)
    rate.record(20_000, 1_000)
    assert rate.wait_ms(1000, 0) == 10_000
