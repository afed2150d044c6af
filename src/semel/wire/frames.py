"""Requests and responses as frames: four bytes of length, a header, a message.

The header's own version follows from the API and its version. Two exceptions of the protocol are handled here and
nowhere else: the client id of a flexible request header is not compact, and the header of an ApiVersions response never
has tagged fields, because its reader does not know yet what the broker speaks.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from semel.wire import decode
from semel.wire.apis import APIS, Api, ApiKey
from semel.wire.primitives import Buffer, Malformed, skip_tagged_fields

_REQUEST_HEADER = Struct(">hhih")
_LENGTH_AND_CORRELATION = Struct(">ii")
_LENGTH = Struct(">i")
_read_request_header = _REQUEST_HEADER.unpack_from

#: The first version of each API whose header has tagged fields. Looked up with every request and every response.
_NEVER = 1 << 16
_FLEXIBLE_SINCE = {key: _NEVER if api.flexible_since is None else api.flexible_since for key, api in APIS.items()}
_RESPONSE_FLEXIBLE_SINCE = {**_FLEXIBLE_SINCE, ApiKey.API_VERSIONS: _NEVER}


class RequestHeader(NamedTuple):
    """The header of a request. Its correlation id comes back with the response."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


#: A named tuple's own `__new__` takes three times as long.
_new_header = tuple.__new__


def parse_request(frame: Buffer) -> tuple[RequestHeader, int]:
    """The header of a request (without its four bytes of length), and where the body begins.

    An unknown API is refused, because the format of its header is not known. An unknown version of a known API is not.
    """
    view = frame if type(frame) is memoryview else memoryview(frame)
    try:
        api_key, api_version, correlation_id, length = _read_request_header(view)
        flexible_since = _FLEXIBLE_SINCE[api_key]
        position = _REQUEST_HEADER.size
        client_id = None
        if length >= 0:
            if length > len(view) - position:
                raise Malformed(f"the client id claims {length} bytes of {len(view) - position}")
            client_id = str(view[position : position + length], "utf-8")
            position += length
        if api_version >= flexible_since:
            tagged_fields = view[position]
            position += 1
            if tagged_fields:
                position = skip_tagged_fields(view, position, tagged_fields, len(view))
    except (StructError, IndexError) as error:
        raise Malformed(f"a request of {len(view)} bytes ends inside its header") from error
    except KeyError:
        raise _unknown(api_key) from None
    except UnicodeDecodeError as error:
        raise Malformed("the client id is not UTF-8") from error
    return _new_header(RequestHeader, (api_key, api_version, correlation_id, client_id)), position


def decode_request(header: RequestHeader, frame: Buffer, body_offset: int) -> Any:
    """The message of a request whose header was parsed."""
    return decode(_api(header.api_key).request, header.api_version, frame, body_offset)


def request_frame(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, message: Any
) -> list[Buffer]:
    """A request as buffers to be sent one after another."""
    out = bytearray(4)
    if client_id is None:
        out += _REQUEST_HEADER.pack(api_key, api_version, correlation_id, -1)
    else:
        name = client_id.encode()
        out += _REQUEST_HEADER.pack(api_key, api_version, correlation_id, len(name))
        out += name
    if _api(api_key).is_flexible(api_version):
        out.append(0)
    return _frame(message, api_version, out)


def response_frame(api_key: int, api_version: int, correlation_id: int, message: Any) -> list[Buffer]:
    """A response as buffers to be sent one after another; `records` among them are not copied."""
    out = bytearray(_LENGTH_AND_CORRELATION.pack(0, correlation_id))
    if api_version >= _RESPONSE_FLEXIBLE_SINCE[api_key]:
        out.append(0)
    return _frame(message, api_version, out)


def read_correlation_id(frame: Buffer) -> int:
    """The correlation id of a response (without its four bytes of length)."""
    if len(frame) < _LENGTH.size:
        raise Malformed(f"a response of {len(frame)} bytes has no correlation id")
    found: int = _LENGTH.unpack_from(frame)[0]
    return found


def parse_response(api_key: int, api_version: int, frame: Buffer) -> tuple[int, Any]:
    """The correlation id and the message of a response to a request of this API and version."""
    view = memoryview(frame)
    correlation_id = read_correlation_id(view)
    api = _api(api_key)
    position = _LENGTH.size
    if api_key != ApiKey.API_VERSIONS and api.is_flexible(api_version):
        if len(view) == position:
            raise Malformed(f"a response of {len(view)} bytes ends inside its header")
        try:
            position = skip_tagged_fields(view, position + 1, view[position], len(view))
        except IndexError as error:
            raise Malformed(f"a response of {len(view)} bytes ends inside its header") from error
    return correlation_id, decode(api.response, api_version, view, position)


def _api(api_key: int) -> Api:
    try:
        return APIS[api_key]
    except KeyError:
        raise _unknown(api_key) from None


def _unknown(api_key: int) -> Malformed:
    return Malformed(f"there is no API with the key {api_key} here")


def _frame(message: Any, version: int, out: bytearray) -> list[Buffer]:
    parts: list[Buffer] = []
    message.__encoders__[version](message, out, parts)
    if len(parts) <= 1:
        # All of it is in `out`, as it is unless there are large records.
        _LENGTH.pack_into(out, 0, len(out) - _LENGTH.size)
        return [out]
    _LENGTH.pack_into(out, 0, sum(map(len, parts)) - _LENGTH.size)
    return parts
