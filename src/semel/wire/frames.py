"""Requests and responses as they travel: four bytes of length, a header, a message.

The header's own version follows from the API and its version. Two oddities of the protocol live here and nowhere
else: the client id of a flexible request header is not compact, and the header of an ApiVersions response never has
tagged fields, because its reader does not know yet what the broker speaks.
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


class RequestHeader(NamedTuple):
    """Who asks what. The correlation id comes back with the answer."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def parse_request(frame: Buffer) -> tuple[RequestHeader, int]:
    """The header of a request (without its four bytes of length), and where the body begins.

    An unknown API is refused: how its header goes on cannot be known. An unknown version of a known API is not.
    """
    view = memoryview(frame)
    try:
        api_key, api_version, correlation_id, length = _REQUEST_HEADER.unpack_from(view)
        api = _api(api_key)
        position = _REQUEST_HEADER.size
        client_id = None
        if length >= 0:
            if length > len(view) - position:
                raise Malformed(f"the client id claims {length} bytes of {len(view) - position}")
            client_id = str(view[position : position + length], "utf-8")
            position += length
        if api.is_flexible(api_version):
            tagged = view[position]
            position += 1
            if tagged:
                position = skip_tagged_fields(view, position, tagged, len(view))
    except (StructError, IndexError) as error:
        raise Malformed(f"a request of {len(view)} bytes ends inside its header") from error
    except UnicodeDecodeError as error:
        raise Malformed("the client id is not UTF-8") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


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
    return _framed(message, api_version, out)


def response_frame(api_key: int, api_version: int, correlation_id: int, message: Any) -> list[Buffer]:
    """A response as buffers to be sent one after another; `records` among them are not copied."""
    out = bytearray(_LENGTH_AND_CORRELATION.pack(0, correlation_id))
    if api_key != ApiKey.API_VERSIONS and _api(api_key).is_flexible(api_version):
        out.append(0)
    return _framed(message, api_version, out)


def read_correlation_id(frame: Buffer) -> int:
    """Which request a response (without its four bytes of length) answers."""
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
        raise Malformed(f"there is no API with the key {api_key} here") from None


def _framed(message: Any, version: int, out: bytearray) -> list[Buffer]:
    parts: list[Buffer] = []
    message.__encoders__[version](message, out, parts)
    if not parts:
        parts.append(out)
    _LENGTH.pack_into(out, 0, sum(map(len, parts)) - _LENGTH.size)
    return parts
