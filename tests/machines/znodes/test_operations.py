"""The size of a change is what kazoo sends for it, to the byte."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kazoo.protocol import serialization as kazoo
from kazoo.security import ACL, Id

from semel.machines.znodes.operations import OPEN, Acl, Check, Create, Delete, Multi, Operation, SetData

PATHS = st.text("/abcé字", min_size=1, max_size=30)
VERSIONS = st.integers(-1, 9)
ACLS = st.sampled_from([OPEN, (), (*OPEN, Acl(3, "digest", "ada:x"))])
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Check, PATHS, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(SetData, PATHS, st.binary(max_size=40), VERSIONS),
    st.builds(Create, PATHS, st.binary(max_size=40), ACLS, st.booleans(), st.booleans()),
)


def as_kazoo(operation: Operation) -> Any:
    match operation:
        case Check(path, version):
            return kazoo.CheckVersion(path, version)
        case Delete(path, version):
            return kazoo.Delete(path, version)
        case SetData(path, data, version):
            return kazoo.SetData(path, data, version)
        case Create(path, data, acl):
            return kazoo.Create(path, data, [ACL(each.permissions, Id(each.scheme, each.id)) for each in acl], 0)


@given(OPERATIONS)
def test_the_size_of_an_operation(operation: Operation) -> None:
    assert operation.size_bytes() == len(as_kazoo(operation).serialize())


@given(st.lists(OPERATIONS, max_size=4))
def test_the_size_of_a_multi_is_that_of_its_request(operations: list[Operation]) -> None:
    sent = kazoo.Transaction([as_kazoo(each) for each in operations]).serialize()
    assert Multi(operations).size_bytes() == 4 + 4 + len(sent)  # the request's number and kind come first
