"""Error rows, refusals, and the client's tree."""

from __future__ import annotations

import pickle

import pytest

from semel import errors
from semel.errors import ErrorCode, InvariantViolation, Kind, Refused, error_for, invariant
from semel.wire import Malformed

BRANCHES = {
    Kind.RETRIABLE: errors.Retriable,
    Kind.ABORTABLE: errors.AbortTransaction,
    Kind.FATAL: errors.Fatal,
    Kind.MISUSE: errors.Misuse,
}


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.NONE], ids=lambda code: code.name)
def test_every_code_becomes_an_exception_of_its_branch_that_says_what_to_do(code: ErrorCode) -> None:
    error = error_for(code, "because")
    assert isinstance(error, BRANCHES[code.kind])
    assert error.code is code
    assert error.what_to_do in str(error)
    assert "because" in str(error)


def test_every_class_of_the_tree_is_in_the_picture_at_the_top_of_the_module() -> None:
    picture = errors.__doc__ or ""
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.KafkaError)]
    assert len(classes) > 15
    for cls in classes:
        assert cls.__name__ in picture
        assert cls.what_to_do


def test_a_code_from_the_future_reads_as_an_unknown_error() -> None:
    assert ErrorCode.of(51) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert ErrorCode.of(9999) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_exactly_one_flag_or_none_says_what_kind_a_code_is() -> None:
    for code in ErrorCode:
        assert code.retriable + code.abortable + code.fatal == (code is not ErrorCode.NONE), code


def test_a_refusal_says_its_code_and_why() -> None:
    assert str(Refused(ErrorCode.INVALID_TXN_STATE, "nothing is open")) == "INVALID_TXN_STATE: nothing is open"
    assert str(Refused(ErrorCode.PRODUCER_FENCED)).endswith(ErrorCode.PRODUCER_FENCED.meaning)


def test_errors_survive_a_process_boundary() -> None:
    for error in (Refused(ErrorCode.INVALID_CONFIG, "x"), Malformed("x"), error_for(ErrorCode.PRODUCER_FENCED, "x")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.code, again.why) == (type(error), error.code, error.why)


def test_an_invariant_is_not_caught_by_accident() -> None:
    invariant(True, "never said")
    with pytest.raises(InvariantViolation, match="two owners"):
        try:
            invariant([], "two owners")
        except Exception:
            pytest.fail("an InvariantViolation must not be an Exception")
