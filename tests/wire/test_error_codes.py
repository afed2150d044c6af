"""Error codes are found in every response that has one, wherever they stand."""

from __future__ import annotations

from typing import Any

import pytest

from semel.errors import ErrorCode
from semel.wire.apis import APIS
from semel.wire.error_codes import error_codes, has_error_code, with_error
from semel.wire.messages.groups import LeaveGroupResponse
from semel.wire.messages.offsets import OffsetCommitResponse
from semel.wire.schema import fields_of

E = ErrorCode


def one_of_each(kind: type[Any]) -> Any:
    """A message of this kind with one element in each array of structs."""
    message = kind()
    for field in fields_of(kind):
        if field.struct is not None:
            nested = one_of_each(field.struct)
            setattr(message, field.name, [nested] if field.array else nested)
    return message


def count_codes(kind: type[Any]) -> int:
    own = sum(field.name in ("error_code", "partition_error_code") for field in fields_of(kind))
    return own + sum(count_codes(field.struct) for field in fields_of(kind) if field.struct is not None)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_every_code_of_every_response_is_set_and_found(api: Any) -> None:
    response = one_of_each(api.response)
    failed = with_error(response, E.COORDINATOR_LOAD_IN_PROGRESS)
    assert list(error_codes(failed)) == [E.COORDINATOR_LOAD_IN_PROGRESS] * count_codes(api.response)
    assert list(error_codes(response)) == []


def test_an_error_that_was_there_stays() -> None:
    kind = LeaveGroupResponse.MemberResponse
    response = LeaveGroupResponse(members=[kind(member_id="a"), kind(member_id="b", error_code=E.UNKNOWN_MEMBER_ID)])
    failed = with_error(response, E.NOT_COORDINATOR)
    assert [member.error_code for member in failed.members] == [E.NOT_COORDINATOR, E.UNKNOWN_MEMBER_ID]
    assert list(error_codes(failed)) == [E.NOT_COORDINATOR, E.NOT_COORDINATOR, E.UNKNOWN_MEMBER_ID]


def test_a_response_with_no_code_of_its_own_says_so() -> None:
    assert not has_error_code(OffsetCommitResponse, 9)
    assert has_error_code(LeaveGroupResponse, 0)
