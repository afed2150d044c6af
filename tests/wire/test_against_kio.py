"""Every API in every version served, held against another implementation, in both directions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.wire import decode, encode
from semel.wire.messages.coordinator_records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    EndTxnMarker,
)
from tests.wire.generated import API_MESSAGES, messages, name_of, versions
from tests.wire.oracle import KIO_VALUES, kio_class, kio_decode, kio_encode, to_kio

EMBEDDED: list[type[Any]] = [ConsumerProtocolSubscription, ConsumerProtocolAssignment, EndTxnMarker]


@pytest.mark.parametrize(("cls", "version"), versions(API_MESSAGES + EMBEDDED), ids=name_of)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_both_implementations_read_and_write_the_same_bytes(cls: type[Any], version: int, data: st.DataObject) -> None:
    message = data.draw(messages(cls, version, KIO_VALUES))
    kio = kio_class(cls, version)
    expected = to_kio(message, kio, version)
    ours = encode(message, version)
    theirs = kio_encode(expected)
    assert kio_decode(kio, ours) == expected
    assert decode(cls, version, theirs) == message
    assert ours == theirs
