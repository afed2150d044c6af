"""Requests and responses: any bytes are a message of some API and version, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from semel.errors import Refused
from semel.wire import TooManyElements, decode_from, decode_versioned, encode, encode_versioned
from semel.wire.apis import APIS
from semel.wire.frames import parse_request, parse_response, request_frame, response_frame
from semel.wire.messages import coordinator_records
from semel.wire.schema import about, fields_of
from tests.fuzz.target import Draw, Target, expect

REQUEST, RESPONSE, RECORD = range(3)

#: Every (API, version) whose response a client may read, and every record of a coordinator.
VERSIONS = [(key, version) for key, api in APIS.items() for version in range(api.min_version, api.max_version + 1)]
RECORDS: list[type[Any]] = [cls for cls in vars(coordinator_records).values() if hasattr(cls, "__about__")]

_VALUES: dict[str, Any] = {
    "Bool": True, "Int8": 3, "Int16": 7, "Int32": 1 << 20, "Int64": 1 << 40, "Uint16": 9, "Uint32": 1 << 31,
    "Float64": 0.5, "String": "name", "Bytes": b"bytes", "Records": b"records", "Uuid": UUID(int=1 << 100 | 5),
}


def filled(cls: type[Any], version: int) -> Any:
    """A message in which every field of this version has a value, and every array an element."""
    given = {}
    for field in fields_of(cls):
        if field.present_in(version):
            value = _VALUES[field.kind] if field.struct is None else filled(field.struct, version)
            given[field.name] = [value] if field.array else value
    return cls(**given)


def elements_of(message: Any) -> int:
    """How many elements all arrays of a message have."""
    count = 0
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if value is None:
            continue
        if field.array:
            count += len(value)
            if field.struct is not None:
                count += sum(map(elements_of, value))
        elif field.struct is not None:
            count += elements_of(value)
    return count


def check_message(cls: type[Any], version: int, message: Any, data_bytes: int) -> None:
    """What was decoded can be written, and read again as the same."""
    expect(elements_of(message) <= data_bytes, "more elements than the frame has bytes")
    written = encode(message, version)
    again, end = decode_from(cls, version, written)
    expect(end == len(written), "a message that was written is not read to its end")
    expect(encode(again, version) == written, "a message that is read again is another")


def one(data: bytes) -> None:
    draw = Draw(data)
    kind = draw.byte() % 3
    try:
        if kind == REQUEST:
            frame = draw.rest()
            header, offset = parse_request(frame)
            cls = APIS[header.api_key].request
            version = header.api_version
            message, _ = decode_from(cls, version, frame, offset)
            count = elements_of(message)
            decode_from(cls, version, frame, offset, count)
            if count:
                try:
                    decode_from(cls, version, frame, offset, count - 1)
                except TooManyElements:
                    pass
                else:
                    expect(False, f"{count} elements are read where {count - 1} are allowed")
            check_message(cls, version, message, len(frame))
        elif kind == RESPONSE:
            key, version = draw.pick(VERSIONS)
            frame = draw.rest()
            _, message = parse_response(key, version, frame)
            check_message(APIS[key].response, version, message, len(frame))
        else:
            cls = draw.pick(RECORDS)
            body = draw.rest()
            message = decode_versioned(cls, body)
            check_message(cls, int.from_bytes(body[:2], "big", signed=True), message, len(body))
    except Refused:
        return


def seeds() -> list[bytes]:
    found = []
    for number, (key, version) in enumerate(VERSIONS):
        request = b"".join(request_frame(key, version, 7, "client", filled(APIS[key].request, version)))
        found.append(bytes([REQUEST]) + request[4:])
        response = b"".join(response_frame(key, version, 7, filled(APIS[key].response, version)))
        chosen = bytes([number]) if len(VERSIONS) <= 256 else number.to_bytes(2, "big")
        found.append(bytes([RESPONSE]) + chosen + response[4:])
    for number, cls in enumerate(RECORDS):
        for version in range(about(cls).min_version, about(cls).max_version + 1):
            found.append(bytes([RECORD, number]) + encode_versioned(filled(cls, version), version))
    return found


def prepare(instrument: Callable[..., Any]) -> None:
    """Decoders are compiled from their schema at the first use: no import brings them."""
    for key, version in VERSIONS:
        for cls in (APIS[key].request, APIS[key].response):
            cls.__decoders__[version] = instrument(cls.__decoders__[version])


TARGET = Target(
    "any bytes are a message of an API and version, and are read again as the same, or are refused",
    one,
    seeds,
    max_bytes=1024,
    prepare=prepare,
)
