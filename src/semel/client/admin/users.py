"""Users that authenticate with SCRAM: their credentials on the brokers.

A password never leaves this process: the brokers get what they need to check it, salted and hashed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from functools import partial

from semel.client.admin.requests import AdminRequests, within_api_timeout
from semel.client.admin.values import ScramCredential
from semel.client.argument_lists import as_id, as_ids
from semel.client.arguments import as_number, as_text
from semel.client.cluster.cluster import Controller
from semel.client.cluster.response_errors import check
from semel.errors import ErrorCode, Misuse
from semel.machines.security.scram import MECHANISM_NUMBERS, salted_password
from semel.wire.messages.security import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)

#: The fewest and the most iterations that brokers accept, and what is taken where none are given.
MIN_ITERATIONS, MAX_ITERATIONS, ITERATIONS = 4096, 16384, 8192
_SALT_BYTES = 24
_NAMES = {number: name for name, number in MECHANISM_NUMBERS.items()}


class UserAdmin:
    """The part of the admin client for users."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    @within_api_timeout
    async def describe_scram_credentials(
        self, users: Iterable[str] | None = None
    ) -> dict[str, tuple[ScramCredential, ...]]:
        """The credentials of these users, or of all users: mechanism and iterations. Nobody can read the password."""
        rows = None
        if users is not None:
            rows = [DescribeUserScramCredentialsRequest.UserName(name=name) for name in as_ids(users, "users")]
            if not rows:
                return {}
        request = DescribeUserScramCredentialsRequest(users=rows)
        response = await self._requests.send(request, Controller())
        check(response.error_code, "describing users", response.error_message)
        found = {}
        for result in response.results:
            check(result.error_code, f"describing user '{result.user}'", result.error_message)
            found[result.user] = tuple(
                ScramCredential(_NAMES.get(row.mechanism, f"mechanism {row.mechanism}"), row.iterations)
                for row in result.credential_infos
            )
        return found

    @within_api_timeout
    async def set_scram_credentials(
        self, user: str, password: str, mechanism: str = "SCRAM-SHA-512", *, iterations: int = ITERATIONS
    ) -> None:
        """Let a user authenticate with this password. A credential that the user has for the mechanism is replaced."""
        number = _mechanism(mechanism)
        if not as_text(password, "password"):
            raise Misuse(ErrorCode.INVALID_REQUEST, "the password is empty")
        as_number(iterations, "iterations", MIN_ITERATIONS, MAX_ITERATIONS)
        user = as_id(user, "user")
        salt = secrets.token_bytes(_SALT_BYTES)
        # It is meant to take long.
        hashing = partial(salted_password, mechanism, password, salt, iterations)
        salted = await asyncio.get_running_loop().run_in_executor(None, hashing)
        change = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name=user, mechanism=number, iterations=iterations, salt=salt, salted_password=salted
        )
        await self._alter(AlterUserScramCredentialsRequest(upsertions=[change]))

    @within_api_timeout
    async def delete_scram_credentials(self, user: str, mechanism: str = "SCRAM-SHA-512") -> None:
        """Remove a user's credential for a mechanism. Connections that are open stay open until they end."""
        change = AlterUserScramCredentialsRequest.ScramCredentialDeletion(
            name=as_id(user, "user"), mechanism=_mechanism(mechanism)
        )
        await self._alter(AlterUserScramCredentialsRequest(deletions=[change]))

    async def _alter(self, request: AlterUserScramCredentialsRequest) -> None:
        response = await self._requests.send(request, Controller())
        for result in response.results:
            check(result.error_code, f"changing user '{result.user}'", result.error_message)


def _mechanism(given: object) -> int:
    """Kafka's number of a mechanism."""
    if as_text(given, "mechanism") not in MECHANISM_NUMBERS:
        known = " or ".join(MECHANISM_NUMBERS)
        raise Misuse(ErrorCode.INVALID_REQUEST, f'mechanism is "{given}": it must be {known}')
    return MECHANISM_NUMBERS[str(given)]
