"""Messages by the thousand: a hypothesis strategy for any message class and version, drawn from its own schema."""

from __future__ import annotations

from functools import cache
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from semel.wire.apis import APIS
from semel.wire.messages import coordinator_records
from semel.wire.schema import Field, about, fields_of

#: Every message class of every API.
API_MESSAGES: list[type[Any]] = [cls for api in APIS.values() for cls in (api.request, api.response)]

#: Every record schema.
RECORD_MESSAGES: list[type[Any]] = [cls for cls in vars(coordinator_records).values() if hasattr(cls, "__about__")]


def versions(classes: list[type[Any]]) -> list[Any]:
    """(class, version) pairs for `parametrize`'s `argvalues`."""
    return [(cls, version) for cls in classes for version in range(about(cls).min_version, about(cls).max_version + 1)]


def name_of(value: object) -> str:
    """A readable part of a test's id."""
    return value.__name__ if isinstance(value, type) else f"v{value}"


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["x" * 126, "y" * 127, "é" * 64]
)
_PAYLOADS = st.binary(max_size=16) | st.sampled_from([b"r" * 126, b"r" * 127, b"r" * 5000])
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "Bool": st.booleans(),
    "Int8": _integers(8),
    "Int16": _integers(16),
    "Int32": _integers(32),
    "Int64": _integers(64),
    "Uint16": st.integers(0, (1 << 16) - 1),
    "Uint32": st.integers(0, (1 << 32) - 1),
    "Float64": st.floats(allow_nan=False, allow_infinity=False),
    "String": _TEXT,
    "Bytes": _PAYLOADS,
    "Records": _PAYLOADS,
    "Uuid": st.integers(0, (1 << 128) - 1).map(lambda value: UUID(int=value)),
}


def _values(field: Field, version: int, special: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    if field.struct is not None:
        values = messages(field.struct, version, _frozen(special))
    elif field.name in special and not field.array:
        values = special[field.name]
    else:
        values = _SCALARS[field.kind]
    if field.array:
        values = st.lists(values, max_size=3)
    if field.nullable_in(version):
        values = st.none() | values
    if field.spec.tag is not None:
        values = st.builds(field.default) | values
    return values


def _frozen(special: dict[str, st.SearchStrategy[Any]]) -> tuple[tuple[str, st.SearchStrategy[Any]], ...]:
    return tuple(special.items())


@cache
def messages(
    cls: type[Any], version: int, special: tuple[tuple[str, st.SearchStrategy[Any]], ...] = ()
) -> st.SearchStrategy[Any]:
    """Messages of this class with everything this version has; `special` gives fields by name their own values."""
    present = [field for field in fields_of(cls) if field.present_in(version)]
    return st.builds(cls, **{field.name: _values(field, version, dict(special)) for field in present})
