"""DescribeUserScramCredentials and AlterUserScramCredentials, with Kafka's checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from semel.broker.dispatch import Pace
from semel.broker.stored.scram import MAX_ITERATIONS, MECHANISMS, MIN_ITERATIONS, CredentialKey
from semel.errors import ErrorCode, Refused
from semel.machines.security.scram import ScramKeys, keys_of
from semel.wire.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer

_Change = (
    AlterUserScramCredentialsRequest.ScramCredentialDeletion | AlterUserScramCredentialsRequest.ScramCredentialUpsertion
)


def describe_user_scram_credentials(
    broker: BrokerServer, request: DescribeUserScramCredentialsRequest, call: Call
) -> Generator[None, None, DescribeUserScramCredentialsResponse]:
    """Describe mechanism and iterations of each requested user, or of all."""
    times: Counter[str] = Counter()
    for row in request.users or ():
        times[row.name] += 1
        yield
    results = []
    for user in times or dict.fromkeys(user for user, _ in broker.stores.scram):
        result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult(user=user)
        results.append(result)
        yield
        found = broker.stores.scram.of_user(user)
        if times[user] > 1:
            result.error_code = ErrorCode.DUPLICATE_RESOURCE
            result.error_message = f"{user} is in the request more than once"
        elif not found:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = f"{user} has no credentials"
        else:
            result.credential_infos = [
                DescribeUserScramCredentialsResponse.CredentialInfo(
                    mechanism=mechanism, iterations=credential.iterations
                )
                for mechanism, credential in sorted(found.items())
            ]
    return DescribeUserScramCredentialsResponse(results=results)


def alter_user_scram_credentials(
    broker: BrokerServer, request: AlterUserScramCredentialsRequest, call: Call
) -> Any:
    """Change credentials, each user once. A refused user stays as before, the others change."""
    return broker.changes.run(_alter(broker, request, call))


async def _alter(
    broker: BrokerServer, request: AlterUserScramCredentialsRequest, call: Call
) -> AlterUserScramCredentialsResponse:
    pace = Pace(broker, call)
    await broker.stores.scram.know()
    row = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    results: dict[str, AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult] = {}
    changes: dict[str, tuple[CredentialKey, ScramKeys | None]] = {}
    asked: list[_Change] = [*request.deletions, *request.upsertions]
    for change in asked:
        await pace.rest()
        user = change.name
        if user in results and results[user].error_code:
            continue
        was_named_before = user in results
        result = results[user] = row(user=user, error_message=None)
        try:
            if was_named_before:
                del changes[user]
                raise Refused(ErrorCode.DUPLICATE_RESOURCE, "a user is in the request more than once")
            changes[user] = (user, change.mechanism), _credential(broker, change)
        except Refused as error:
            result.error_code, result.error_message = error.code, error.why
    try:
        await broker.stores.scram.replace(dict(changes.values()))
    except Refused as error:
        for result in results.values():
            result.error_code, result.error_message = error.code, error.why
    return AlterUserScramCredentialsResponse(results=list(results.values()))


def _credential(broker: BrokerServer, change: _Change) -> ScramKeys | None:
    """The credential to store; None to remove it."""
    if not change.name:
        raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the name of a user is empty")
    if change.mechanism not in MECHANISMS:
        raise Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"there is no SCRAM mechanism {change.mechanism}")
    if isinstance(change, AlterUserScramCredentialsRequest.ScramCredentialDeletion):
        if (change.name, change.mechanism) not in broker.stores.scram:
            raise Refused(ErrorCode.RESOURCE_NOT_FOUND, f"{change.name} has no such credential")
        return None
    if not MIN_ITERATIONS <= change.iterations <= MAX_ITERATIONS:
        raise Refused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"{change.iterations} iterations: allowed are {MIN_ITERATIONS} to {MAX_ITERATIONS}",
        )
    if not change.salted_password:
        raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the password is empty")
    mechanism, salted = MECHANISMS[change.mechanism], bytes(change.salted_password)
    return keys_of(mechanism, salted, bytes(change.salt), change.iterations)
