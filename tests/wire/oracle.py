"""The same message as kio has it. kio's schemas come from Kafka by another way: where both agree, both are right."""

from __future__ import annotations

import dataclasses
import datetime
import io
from typing import Any, get_args
from uuid import UUID

from hypothesis import strategies as st
from kio.index import load_entity_schema, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from semel.wire.schema import about, fields_of

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_SECONDS = st.integers(0, 1 << 33).map(lambda seconds: seconds * 1000)
_ERROR_CODES = st.sampled_from([int(code) for code in ErrorCode])

#: Fields for which kio has types of its own, which do not hold every integer.
KIO_VALUES: tuple[tuple[str, st.SearchStrategy[Any]], ...] = (
    ("error_code", _ERROR_CODES),
    ("partition_error_code", _ERROR_CODES),
    ("log_append_time_ms", _SECONDS | st.just(-1)),
    ("transaction_start_time_ms", _SECONDS),
    ("retention_time_ms", _SECONDS),
    ("session_lifetime_ms", _SECONDS),
    ("max_lifetime_ms", _SECONDS),
    ("issue_timestamp_ms", _SECONDS),
    ("expiry_timestamp_ms", _SECONDS),
    ("max_timestamp_ms", _SECONDS),
    ("renew_period_ms", _SECONDS),
    ("expiry_time_period_ms", _SECONDS),
)


def kio_class(cls: type[Any], version: int) -> type[Any]:
    if cls.__name__.endswith("Request"):
        return load_request_schema(about(cls).key, version)
    if cls.__name__.endswith("Response"):
        return load_response_schema(about(cls).key, version)
    name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in cls.__name__)
    return load_entity_schema(name.lstrip("_"), version, EntityType.data)


def to_kio(message: Any, kio: type[Any], version: int) -> Any:
    """Field by field, in order: neither side may have one the other has not."""
    ours = [field for field in fields_of(type(message)) if field.present_in(version)]
    theirs = dataclasses.fields(kio)
    assert [field.name.removesuffix("_ms") for field in ours] == [
        field.name.removesuffix("_").removesuffix("_ms") for field in theirs
    ]
    given = {}
    for our, their in zip(ours, theirs, strict=True):
        value = getattr(message, our.name)
        kind = their.metadata.get("kafka_type")
        if our.struct is not None:
            inner = _entity(their.type)
            value = _mapped(value, lambda item, inner=inner: to_kio(item, inner, version))
        else:
            value = _mapped(value, lambda item, kind=kind, type_=their.type: _scalar(item, kind, type_))
        given[their.name] = value
    return kio(**given)


def _mapped(value: Any, convert: Any) -> Any:
    if value is None:
        return None
    return tuple(map(convert, value)) if isinstance(value, list) else convert(value)


def _entity(declared: Any) -> type[Any]:
    if dataclasses.is_dataclass(declared):
        return declared  # type: ignore[return-value]
    return next(_entity(part) for part in get_args(declared) if part not in (type(None), ...))


def _scalar(value: Any, kind: str | None, declared: Any) -> Any:
    match kind:
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=value)
        case "datetime_i64":
            return None if value == -1 else _EPOCH + datetime.timedelta(milliseconds=value)
        case "error_code":
            return ErrorCode(value)
        case "uuid" if value == UUID(int=0):
            return None
    return value


def kio_encode(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def kio_decode(kio: type[Any], data: bytes) -> Any:
    entity, size = entity_reader(kio)(data, 0)
    assert size == len(data)
    return entity
