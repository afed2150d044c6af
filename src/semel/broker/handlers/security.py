"""SaslHandshake and SaslAuthenticate of clients that the dispatcher serves: they are authenticated, or need not be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.errors import ErrorCode
from semel.wire.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer


def sasl_handshake(broker: BrokerServer, request: SaslHandshakeRequest, call: Call) -> SaslHandshakeResponse | None:
    """An authenticated client authenticates again. Refused where nobody authenticates."""
    gate = broker.connections.gate_of(call.connection)
    if gate is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    return gate.authenticate_again(request, call)


def sasl_authenticate(broker: BrokerServer, request: SaslAuthenticateRequest, call: Call) -> SaslAuthenticateResponse:
    """Refuse: the handshake comes first, and on a listener without SASL nobody authenticates."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslHandshake comes first, and only a listener with SASL takes it",
    )
