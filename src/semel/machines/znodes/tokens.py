"""Delegation tokens in ZooKeeper, as Apache Kafka 3.9 writes them: `/delegation_token/tokens/<id>`.

The node has no secret: a token's HMAC follows from its id and `delegation.token.secret.key`.
"""

from __future__ import annotations

import json
from typing import Any

from semel.machines.security.delegation_tokens import DelegationToken
from semel.machines.security.principals import Principal, parse_principal
from semel.machines.znodes.entities import decode_name, encode_name
from semel.machines.znodes.operations import Create
from semel.machines.znodes.values import UNREADABLE, UnreadableZnode

FOLDER = "/delegation_token/tokens"
CHANGES = "/delegation_token/token_changes"
_VERSION = 3


def token_path(token_id: str) -> str:
    return f"{FOLDER}/{token_id}"


def notification(token_id: str) -> Create:
    return Create(f"{CHANGES}/token_change_", token_id.encode(), sequential=True)


def encode_token(token: DelegationToken) -> bytes:
    value = {
        "version": _VERSION,
        "owner": encode_name(str(token.owner)),
        "tokenRequester": encode_name(str(token.requester)),
        "renewers": [encode_name(str(renewer)) for renewer in token.renewers],
        "issueTimestamp": token.issued_ms,
        "maxTimestamp": token.max_ms,
        "expiryTimestamp": token.expires_ms,
        "tokenId": token.token_id,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode_token(data: bytes, path: str) -> DelegationToken:
    try:
        value: Any = json.loads(data)
        owner = _principal(value["owner"])
        return DelegationToken(
            str(value["tokenId"]),
            owner,
            _principal(value["tokenRequester"]) if "tokenRequester" in value else owner,
            tuple(_principal(renewer) for renewer in value["renewers"]),
            int(value["issueTimestamp"]),
            int(value["expiryTimestamp"]),
            int(value["maxTimestamp"]),
        )
    except UNREADABLE as error:
        raise UnreadableZnode.at(path, error) from None


def _principal(encoded: str) -> Principal:
    return parse_principal(decode_name(encoded) or "")
