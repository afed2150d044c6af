# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The loops over records, compiled. `_pure` documents each function; tests keep the two equal.

Sections, in this order:

    constants and errors   numbers of the format, texts of the errors, `Parsed`
    varints                varint_size write_varint read_varint read_varlong
    one batch              Batch
    one record             parse_record
    records of a batch     check_framing RecordWalk read_records
    writing records        write_record build_pairs retain_records
    columns in             encode_columns: Arrow columns to records
    columns out            decode_columns: records to Arrow columns
    the partitioner        murmur2 partition_for_key partition_rows
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from crc32c import crc32c

from .layout import Column, HeaderColumns, Record

# --- constants and errors

cdef object new_tuple = tuple.__new__

cdef enum:
    FINE = 0
    PAST_END = 1
    TOO_LONG = 2
    NEGATIVE = 3
    FIELD_PAST_END = 4
    RECORD_PAST_END = 5
    HEADER_COUNT = 6
    NO_NAME = 7
    LOOSE = 8
    OUT_OF_PLACE = 9
    NO_KEY = 10
    LEFT_OVER = 11
    RECORD_COUNT = 12
    SMALLEST = 7
    # As in layout.py: the header's size, what the length does not count, where the CRC stands and what it covers.
    HEADER = 61
    UNCOUNTED = 12
    CRC_AT = 17
    CHECKED_FROM = 21
    MAGIC = 2

FLAWS = (
    "",
    "a varint runs past the end",
    "a varint is too long",
    "a field has a negative length",
    "a field runs past the end of its record",
    "a record runs past the end of its batch",
    "a record has an impossible number of headers",
    "a header has no name",
    "a record is longer than what it holds",
    "a record is out of its place in the batch",
    "a record has no key, and the topic is compacted",
    "bytes are left over after the last record",
    "more records are announced than the batch can hold",
)

cdef struct Parsed:
    int64_t timestamp_delta
    int64_t offset_delta
    Py_ssize_t key_from
    Py_ssize_t key_to
    Py_ssize_t value_from
    Py_ssize_t value_to
    Py_ssize_t end


# --- varints

cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)


cdef inline Py_ssize_t size_of(int64_t value) noexcept nogil:
    cdef uint64_t rest = zigzag(value)
    cdef Py_ssize_t size = 1
    while rest > 0x7F:
        rest >>= 7
        size += 1
    return size


cdef inline uint8_t* put(uint8_t* at, int64_t value) noexcept nogil:
    cdef uint64_t rest = zigzag(value)
    while rest > 0x7F:
        at[0] = <uint8_t> (rest | 0x80)
        at += 1
        rest >>= 7
    at[0] = <uint8_t> rest
    return at + 1


cdef inline int get(
    const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, int last_shift, uint8_t last_byte, int64_t* value
) noexcept nogil:
    cdef Py_ssize_t at = position[0]
    cdef uint64_t result
    cdef uint8_t byte
    cdef int shift = 7
    if at >= end:
        return PAST_END
    byte = data[at]
    at += 1
    result = byte & 0x7F
    while byte >= 0x80:
        if at >= end:
            return PAST_END
        byte = data[at]
        at += 1
        if shift == last_shift and byte > last_byte:
            return TOO_LONG
        result |= (<uint64_t> (byte & 0x7F)) << shift
        shift += 7
    position[0] = at
    value[0] = <int64_t> (result >> 1) ^ -(<int64_t> (result & 1))
    return FINE


cdef inline int get_varint(const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, int64_t* value) noexcept nogil:
    return get(data, position, end, 28, 0x0F, value)


cdef inline int get_varlong(const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, int64_t* value) noexcept nogil:
    return get(data, position, end, 63, 0x01, value)


def varint_size(int64_t value):
    return size_of(value)


def write_varint(bytearray out, int64_t value):
    cdef uint8_t room[10]
    cdef Py_ssize_t size = put(room, value) - room
    cdef Py_ssize_t before = PyByteArray_GET_SIZE(out)
    PyByteArray_Resize(out, before + size)
    memcpy(PyByteArray_AS_STRING(out) + before, room, size)


cdef read_any(const uint8_t[::1] data, Py_ssize_t position, Py_ssize_t end, int last_shift, uint8_t last_byte):
    cdef int64_t value = 0
    cdef int flaw = PAST_END
    if data.shape[0] > 0:
        flaw = get(&data[0], &position, min(end, data.shape[0]), last_shift, last_byte, &value)
    if flaw:
        raise ValueError(FLAWS[flaw])
    return value, position


def read_varint(const uint8_t[::1] data, Py_ssize_t position, Py_ssize_t end):
    return read_any(data, position, end, 28, 0x0F)


def read_varlong(const uint8_t[::1] data, Py_ssize_t position, Py_ssize_t end):
    return read_any(data, position, end, 63, 0x01)


# --- one batch

cdef inline uint64_t get_big(const uint8_t* at, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int byte
    for byte in range(size):
        value = value << 8 | at[byte]
    return value


cdef class Batch:
    cdef readonly object data
    cdef readonly int64_t base_offset
    cdef readonly int32_t leader_epoch
    cdef readonly int8_t magic
    cdef readonly uint32_t crc
    cdef readonly int16_t attributes
    cdef readonly int32_t last_offset_delta
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t base_sequence
    cdef readonly int32_t record_count

    @staticmethod
    def parse(view, Py_ssize_t position=0):
        cdef Batch batch = Batch.__new__(Batch)
        cdef object data = view if type(view) is memoryview else memoryview(view)
        cdef Py_buffer held
        cdef const uint8_t* at
        cdef Py_ssize_t room, size = -1, whole
        PyObject_GetBuffer(data, &held, PyBUF_SIMPLE)
        whole = held.len
        room = whole - position
        if position >= 0 and room >= HEADER:
            at = <const uint8_t*> held.buf + position
            batch.base_offset = <int64_t> get_big(at, 8)
            size = <int64_t> <int32_t> get_big(at + 8, 4) + UNCOUNTED
            batch.leader_epoch = <int32_t> get_big(at + 12, 4)
            batch.magic = <int8_t> at[16]
            batch.crc = <uint32_t> get_big(at + CRC_AT, 4)
            batch.attributes = <int16_t> get_big(at + 21, 2)
            batch.last_offset_delta = <int32_t> get_big(at + 23, 4)
            batch.base_timestamp = <int64_t> get_big(at + 27, 8)
            batch.max_timestamp = <int64_t> get_big(at + 35, 8)
            batch.producer_id = <int64_t> get_big(at + 43, 8)
            batch.producer_epoch = <int16_t> get_big(at + 51, 2)
            batch.base_sequence = <int32_t> get_big(at + 53, 4)
            batch.record_count = <int32_t> get_big(at + 57, 4)
        PyBuffer_Release(&held)
        if size < HEADER or size > room or batch.magic != MAGIC:
            from ._view import no_batch

            raise no_batch(data, position)
        batch.data = data if size == whole else data[position : position + size]
        return batch

    @property
    def size_bytes(self):
        return len(self.data)

    @property
    def payload(self):
        return self.data[HEADER:]

    @property
    def last_offset(self):
        return <object> self.base_offset + self.last_offset_delta

    @property
    def next_offset(self):
        return <object> self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self):
        if self.base_sequence == -1:
            return -1
        return (<int64_t> self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def has_producer_id(self):
        return self.producer_id > -1

    @property
    def is_transactional(self):
        return self.attributes & 0x10 != 0

    @property
    def is_control(self):
        return self.attributes & 0x20 != 0

    @property
    def codec(self):
        return self.attributes & 0x07

    @property
    def timestamp_type(self):
        return 1 if self.attributes & 0x08 else 0

    @property
    def has_delete_horizon(self):
        return self.attributes & 0x40 != 0

    @property
    def delete_horizon_ms(self):
        return self.base_timestamp if self.attributes & 0x40 else None

    def __repr__(self):
        return (
            f"Batch(offsets={self.base_offset}..{self.last_offset}, records={self.record_count}, "
            f"producer={self.producer_id}/{self.producer_epoch}, sequence={self.base_sequence}, "
            f"attributes={self.attributes:#x}, size_bytes={len(self.data)})"
        )


# --- one record

cdef inline int get_field(
    const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, Py_ssize_t* begin
) noexcept nogil:
    cdef int64_t length = 0
    cdef int flaw = get_varint(data, position, end, &length)
    if flaw:
        return flaw
    if length < 0:
        begin[0] = -1
        return FINE if length == -1 else NEGATIVE
    if length > end - position[0]:
        return FIELD_PAST_END
    begin[0] = position[0]
    position[0] += length
    return FINE


cdef inline int parse(const uint8_t* data, Py_ssize_t size, Py_ssize_t position, Parsed* record) noexcept nogil:
    cdef int64_t length = 0, count = 0
    cdef Py_ssize_t end, begin = 0
    cdef int flaw = get_varint(data, &position, size, &length)
    if flaw:
        return flaw
    if length <= 0 or length > size - position:
        return RECORD_PAST_END
    end = position + length
    position += 1
    flaw = get_varlong(data, &position, end, &record.timestamp_delta)
    if flaw:
        return flaw
    flaw = get_varint(data, &position, end, &record.offset_delta)
    if flaw:
        return flaw
    flaw = get_field(data, &position, end, &record.key_from)
    if flaw:
        return flaw
    record.key_to = position
    flaw = get_field(data, &position, end, &record.value_from)
    if flaw:
        return flaw
    record.value_to = position
    flaw = get_varint(data, &position, end, &count)
    if flaw:
        return flaw
    if count < 0 or count > end - position:
        return HEADER_COUNT
    while count > 0:
        flaw = get_field(data, &position, end, &begin)
        if flaw:
            return flaw
        if begin < 0:
            return NO_NAME
        flaw = get_field(data, &position, end, &begin)
        if flaw:
            return flaw
        count -= 1
    if position != end:
        return LOOSE
    record.end = end
    return FINE


def parse_record(const uint8_t[::1] data, Py_ssize_t position):
    cdef Parsed record
    cdef int flaw = PAST_END
    if data.shape[0] > 0:
        flaw = parse(&data[0], data.shape[0], position, &record)
    if flaw:
        raise ValueError(FLAWS[flaw])
    return (
        record.timestamp_delta, record.offset_delta, record.key_from, record.key_to,
        record.value_from, record.value_to, record.end,
    )


cdef inline object text_or_none(const uint8_t* data, Py_ssize_t begin, Py_ssize_t end):
    if begin < 0:
        return None
    return PyBytes_FromStringAndSize(<const char*> data + begin, end - begin)


cdef tuple headers_of(const uint8_t* data, Py_ssize_t position, Py_ssize_t end):
    cdef int64_t count = 0
    cdef Py_ssize_t name = 0, name_to, content = 0
    cdef list headers = []
    get_varint(data, &position, end, &count)
    while count > 0:
        get_field(data, &position, end, &name)
        name_to = position
        get_field(data, &position, end, &content)
        headers.append((
            PyBytes_FromStringAndSize(<const char*> data + name, name_to - name).decode("utf-8", "replace"),
            text_or_none(data, content, position),
        ))
        count -= 1
    return tuple(headers)


cdef inline const uint8_t* start_of(const uint8_t[::1] data) noexcept:
    return &data[0] if data.shape[0] > 0 else <const uint8_t*> b""


cdef int check_count(Py_ssize_t size, int64_t count) except -1:
    if count < 0 or count > size // SMALLEST:
        raise ValueError(FLAWS[RECORD_COUNT])
    return 0


# --- records of a batch

def check_framing(
    const uint8_t[::1] payload, int64_t count, bint dense, int64_t last_offset_delta, bint require_keys
):
    cdef const uint8_t* data = start_of(payload)
    cdef Py_ssize_t size = payload.shape[0], position = 0
    cdef int64_t index, previous = -1, largest = INT64_MIN
    cdef Parsed record
    cdef int flaw = FINE
    check_count(size, count)
    with nogil:
        for index in range(count):
            flaw = parse(data, size, position, &record)
            if flaw:
                break
            if dense:
                if record.offset_delta != index:
                    flaw = OUT_OF_PLACE
                    break
            elif record.offset_delta <= previous or record.offset_delta > last_offset_delta:
                flaw = OUT_OF_PLACE
                break
            if require_keys and record.key_from < 0:
                flaw = NO_KEY
                break
            position = record.end
            previous = record.offset_delta
            if record.timestamp_delta > largest:
                largest = record.timestamp_delta
    if not flaw and position != size:
        flaw = LEFT_OVER
    if flaw:
        raise ValueError(FLAWS[flaw])
    return largest


cdef class RecordWalk:
    cdef readonly int64_t walked
    cdef readonly int64_t first_offset_delta
    cdef readonly int64_t largest_timestamp
    cdef readonly Py_ssize_t wanted
    cdef readonly list keyless
    cdef readonly list far_off
    cdef readonly bint has_keyless
    cdef readonly bint has_far_off
    cdef int64_t count, last_offset_delta, base_timestamp, oldest, newest, previous, from_offset_delta
    cdef bint dense, require_keys
    cdef Py_ssize_t named, named_max

    def __init__(
        self, int64_t count, bint dense, int64_t last_offset_delta, bint require_keys,
        int64_t base_timestamp, int64_t oldest, int64_t newest, Py_ssize_t named_max, int64_t from_offset_delta=0,
    ):
        self.count, self.dense, self.last_offset_delta, self.require_keys = count, dense, last_offset_delta, require_keys
        self.base_timestamp, self.oldest, self.newest, self.named_max = base_timestamp, oldest, newest, named_max
        self.from_offset_delta = from_offset_delta
        self.walked = self.named = 0
        self.previous = self.first_offset_delta = self.largest_timestamp = -1
        self.wanted = 0
        self.keyless = []
        self.far_off = []
        self.has_keyless = self.has_far_off = False
        if count < 0:
            raise ValueError(FLAWS[RECORD_COUNT])

    def feed(self, const uint8_t[::1] piece, bint is_last):
        cdef const uint8_t* data = start_of(piece)
        cdef Py_ssize_t size = piece.shape[0], position = 0, at
        cdef int64_t length = 0, timestamp = 0
        cdef Parsed record
        cdef int flaw = FINE
        cdef bint is_keyless, is_far_off
        if is_last and self.count - self.walked > size // SMALLEST:
            raise ValueError(FLAWS[RECORD_COUNT])
        self.wanted = 0
        with nogil:
            while self.walked < self.count:
                if not is_last:
                    at = position
                    flaw = get_varint(data, &at, size, &length)
                    if flaw == PAST_END:
                        flaw = FINE
                        self.wanted = size - position + 1
                        break
                    if flaw:
                        break
                    if length > size - at:
                        self.wanted = at - position + length
                        break
                flaw = parse(data, size, position, &record)
                if flaw:
                    break
                if self.dense:
                    if record.offset_delta != self.walked:
                        flaw = OUT_OF_PLACE
                        break
                elif record.offset_delta <= self.previous or record.offset_delta > self.last_offset_delta:
                    flaw = OUT_OF_PLACE
                    break
                self.previous = record.offset_delta
                position = record.end
                self.walked += 1
                if record.offset_delta < self.from_offset_delta:
                    continue
                if self.first_offset_delta < 0:
                    self.first_offset_delta = record.offset_delta
                timestamp = <int64_t> (<uint64_t> self.base_timestamp + <uint64_t> record.timestamp_delta)
                if timestamp > self.largest_timestamp:
                    self.largest_timestamp = timestamp
                is_keyless = self.require_keys and record.key_from < 0
                is_far_off = timestamp != -1 and (
                    timestamp < self.oldest
                    or timestamp > self.newest
                    # a sum that does not fit wraps to the other side
                    or (record.timestamp_delta < 0) != (timestamp < self.base_timestamp)
                )
                if is_keyless:
                    self.has_keyless = True
                elif is_far_off:
                    self.has_far_off = True
                if (is_keyless or is_far_off) and self.named < self.named_max:
                    self.named += 1
                    with gil:
                        if is_keyless:
                            self.keyless.append(record.offset_delta)
                        else:
                            self.far_off.append((record.offset_delta, timestamp))
        if not flaw and self.walked == self.count and position != size:
            flaw = LEFT_OVER
        if flaw:
            raise ValueError(FLAWS[flaw])
        return position


def read_records(
    const uint8_t[::1] payload, int64_t count, int64_t base_offset, int64_t base_timestamp, int64_t append_time
):
    cdef const uint8_t* data = start_of(payload)
    cdef Py_ssize_t size = payload.shape[0], position = 0
    cdef int64_t index, timestamp
    cdef Parsed record
    cdef int flaw
    cdef list records = []
    check_count(size, count)
    for index in range(count):
        flaw = parse(data, size, position, &record)
        if flaw:
            raise ValueError(FLAWS[flaw])
        timestamp = append_time
        if append_time < 0:
            timestamp = <int64_t> (<uint64_t> base_timestamp + <uint64_t> record.timestamp_delta)
        records.append(new_tuple(Record, (
            <int64_t> (<uint64_t> base_offset + <uint64_t> record.offset_delta),
            timestamp,
            text_or_none(data, record.key_from, record.key_to),
            text_or_none(data, record.value_from, record.value_to),
            headers_of(data, record.value_to, record.end) if record.end - record.value_to > 1 else (),
        )))
        position = record.end
    if position != size:
        raise ValueError(FLAWS[LEFT_OVER])
    return records


# --- writing records

cdef class Held:
    """A buffer that stays open while its address is used. None stands for no bytes."""

    cdef Py_buffer view
    cdef bint held
    cdef const uint8_t* data
    cdef Py_ssize_t size

    def __cinit__(self, source):
        self.held = False
        self.data = NULL
        self.size = 0
        if source is not None:
            PyObject_GetBuffer(source, &self.view, PyBUF_SIMPLE)
            self.held = True
            self.data = <const uint8_t*> self.view.buf
            self.size = self.view.len

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


def write_record(bytearray out, int64_t timestamp_delta, int64_t offset_delta, key, value, headers):
    append_record(out, timestamp_delta, offset_delta, key, value, headers)


cdef int append_record(
    bytearray out, int64_t timestamp_delta, int64_t offset_delta, key, value, headers
) except -1:
    cdef bytes encoded = b""
    cdef Py_ssize_t key_size = -1, value_size = -1, body, before, encoded_size
    cdef const uint8_t* key_data = NULL
    cdef const uint8_t* value_data = NULL
    cdef Held held_key, held_value
    cdef uint8_t* at
    if key is not None:
        if type(key) is bytes:
            key_data, key_size = <const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        else:
            held_key = Held(key)
            key_data, key_size = held_key.data, held_key.size
    if value is not None:
        if type(value) is bytes:
            value_data, value_size = <const uint8_t*> PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        else:
            held_value = Held(value)
            value_data, value_size = held_value.data, held_value.size
    if headers:
        encoded = encode_headers(headers)
    encoded_size = PyBytes_GET_SIZE(encoded) if encoded else 1
    body = 1 + size_of(timestamp_delta) + size_of(offset_delta) + encoded_size
    body += size_of(key_size) + max(key_size, 0) + size_of(value_size) + max(value_size, 0)
    before = PyByteArray_GET_SIZE(out)
    PyByteArray_Resize(out, before + size_of(body) + body)
    at = put(<uint8_t*> PyByteArray_AS_STRING(out) + before, body)
    at[0] = 0
    at = put(put(at + 1, timestamp_delta), offset_delta)
    at = put_bytes(at, key_data, key_size)
    at = put_bytes(at, value_data, value_size)
    if encoded:
        memcpy(at, PyBytes_AS_STRING(encoded), encoded_size)
    else:
        at[0] = 0
    return 0


cdef inline uint8_t* put_big(uint8_t* at, uint64_t value, int size) noexcept nogil:
    """Write an integer of `size` bytes, the most significant first."""
    cdef int byte
    for byte in range(size):
        at[byte] = <uint8_t> (value >> (8 * (size - 1 - byte)))
    return at + size


def build_pairs(
    pairs,
    int64_t timestamp_ms,
    *,
    int64_t producer_id=-1,
    int16_t producer_epoch=-1,
    int16_t attributes=0,
    int64_t base_offset=0,
    int32_t leader_epoch=-1,
):
    cdef bytearray data = PyByteArray_FromStringAndSize(NULL, HEADER)
    cdef int32_t count = 0
    cdef uint8_t* at
    for key, value in pairs:
        append_record(data, 0, count, key, value, None)
        count += 1
    at = <uint8_t*> PyByteArray_AS_STRING(data)
    at = put_big(at, <uint64_t> base_offset, 8)
    at = put_big(at, PyByteArray_GET_SIZE(data) - UNCOUNTED, 4)
    at = put_big(at, <uint64_t> leader_epoch, 4)
    at[0] = MAGIC
    at = put_big(at + 1, 0, 4)
    at = put_big(at, <uint64_t> attributes, 2)
    at = put_big(at, <uint64_t> (count - 1), 4)
    at = put_big(at, <uint64_t> timestamp_ms, 8)
    at = put_big(at, <uint64_t> timestamp_ms, 8)
    at = put_big(at, <uint64_t> producer_id, 8)
    at = put_big(at, <uint64_t> producer_epoch, 2)
    at = put_big(at, <uint64_t> -1, 4)
    put_big(at, <uint64_t> count, 4)
    put_big(<uint8_t*> PyByteArray_AS_STRING(data) + CRC_AT, <uint64_t> crc32c(memoryview(data)[CHECKED_FROM:]), 4)
    return data


cdef inline uint8_t* put_bytes(uint8_t* at, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    at = put(at, size)
    if size > 0:
        memcpy(at, data, size)
        at += size
    return at


cdef bytes encode_headers(headers):
    cdef bytearray out = bytearray()
    write_varint(out, len(headers))
    for name, content in headers:
        encoded = name.encode()
        write_varint(out, len(encoded))
        out += encoded
        if content is None:
            out.append(1)
        else:
            write_varint(out, len(content))
            out += content
    return bytes(out)


def retain_records(const uint8_t[::1] payload, int64_t count, mask, int64_t timestamp_shift):
    cdef const uint8_t* data = start_of(payload)
    cdef Py_ssize_t size = payload.shape[0], position = 0, body, rest, begin
    cdef int64_t index, ignored = 0, length, timestamp_delta
    cdef Parsed record
    cdef int flaw
    check_count(size, count)
    # A moved timestamp may take ten bytes where it took one, and the record's length then one more.
    cdef bytearray out = PyByteArray_FromStringAndSize(NULL, size + (10 * count if timestamp_shift else 0))
    cdef uint8_t* first = <uint8_t*> PyByteArray_AS_STRING(out)
    cdef uint8_t* at = first
    for index in range(count):
        begin = position
        flaw = parse(data, size, begin, &record)
        if flaw:
            raise ValueError(FLAWS[flaw])
        position = record.end
        if not mask[index]:
            continue
        if timestamp_shift:
            body = begin
            get_varint(data, &body, size, &ignored)
            rest = body + 1
            get_varlong(data, &rest, size, &ignored)
            timestamp_delta = <int64_t> (<uint64_t> record.timestamp_delta + <uint64_t> timestamp_shift)
            length = 1 + size_of(timestamp_delta) + position - rest
            at = put(at, length)
            at[0] = data[body]
            at = put(at + 1, timestamp_delta)
            memcpy(at, data + rest, position - rest)
            at += position - rest
        else:
            memcpy(at, data + begin, position - begin)
            at += position - begin
    return PyBytes_FromStringAndSize(<const char*> first, at - first)


# --- columns in

cdef struct Reader:
    bint present
    bint wide
    const uint8_t* offsets
    const uint8_t* data
    const uint8_t* validity
    Py_ssize_t first
    Py_ssize_t offsets_count
    Py_ssize_t data_size
    Py_ssize_t validity_bits


cdef Reader reader_of(list held, offsets, data, validity, Py_ssize_t first, bint wide):
    cdef Reader reader
    cdef Held buffer
    reader.present = True
    reader.wide = wide
    reader.first = first
    buffer = Held(offsets)
    held.append(buffer)
    reader.offsets = buffer.data
    reader.offsets_count = buffer.size // (8 if wide else 4)
    buffer = Held(data)
    held.append(buffer)
    reader.data = buffer.data
    reader.data_size = buffer.size
    buffer = Held(validity)
    held.append(buffer)
    reader.validity = buffer.data
    reader.validity_bits = buffer.size * 8
    return reader


cdef Reader column_reader(list held, column):
    cdef Reader reader
    if column is None:
        memset(&reader, 0, sizeof(Reader))
        return reader
    return reader_of(held, column.offsets, column.data, column.validity, column.first, column.wide)


cdef int check_rows(Reader* reader, Py_ssize_t start, Py_ssize_t stop) except -1:
    """Refuse rows outside of the buffers: they would be read from other memory."""
    if not reader.present:
        return 0
    if reader.first < 0 or start < 0 or stop + reader.first >= reader.offsets_count and stop > start:
        raise IndexError("a column is shorter than its rows")
    if reader.validity != NULL and stop + reader.first > reader.validity_bits:
        raise IndexError("a column is shorter than its rows")
    return 0


cdef inline int64_t offset_at(Reader* reader, Py_ssize_t row) noexcept nogil:
    if reader.wide:
        return (<const int64_t*> reader.offsets)[row]
    return (<const int32_t*> reader.offsets)[row]


cdef inline bint is_valid(Reader* reader, Py_ssize_t row) noexcept nogil:
    return reader.validity == NULL or (reader.validity[row >> 3] >> (row & 7)) & 1


cdef inline const uint8_t* cell(Reader* reader, Py_ssize_t row, Py_ssize_t* size) noexcept nogil:
    """The bytes of a row and how many they are (-1: null; -2: the offsets of the column are wrong)."""
    cdef int64_t begin, end
    size[0] = -1
    if not reader.present:
        return NULL
    row += reader.first
    if not is_valid(reader, row):
        return NULL
    begin, end = offset_at(reader, row), offset_at(reader, row + 1)
    if begin < 0 or end < begin or end > reader.data_size:
        size[0] = -2
        return NULL
    size[0] = end - begin
    return reader.data + begin


def encode_columns(
    keys, values, headers, timestamps,
    Py_ssize_t start, Py_ssize_t stop, int64_t timestamp_ms, Py_ssize_t limit_bytes, Py_ssize_t reserve,
):
    cdef list held = []
    cdef Reader key_reader = column_reader(held, keys)
    cdef Reader value_reader = column_reader(held, values)
    cdef Reader list_reader, name_reader, content_reader
    cdef Held times_held = Held(timestamps)
    cdef const int64_t* times = <const int64_t*> times_held.data
    cdef bint has_headers = headers is not None
    cdef Py_ssize_t row, key_size = 0, value_size = 0, name_size = 0, content_size = 0, body, capacity, used, need
    cdef Py_ssize_t list_row, count = 0
    cdef int64_t timestamp, base_timestamp, max_timestamp, delta, item, items = 0, items_from, items_to, headers_size
    cdef const uint8_t* key
    cdef const uint8_t* value
    cdef const uint8_t* text
    cdef uint8_t* at
    cdef bytearray out
    check_rows(&key_reader, start, stop)
    check_rows(&value_reader, start, stop)
    if times != NULL and (start < 0 or stop * 8 > times_held.size):
        raise IndexError("a column is shorter than its rows")
    memset(&list_reader, 0, sizeof(Reader))
    if has_headers:
        list_reader = reader_of(held, headers.offsets, None, headers.validity, headers.first, headers.wide)
        name_reader = column_reader(held, headers.names)
        content_reader = column_reader(held, headers.contents)
        check_rows(&list_reader, start, stop)
        if stop > start:
            items = offset_at(&list_reader, stop + list_reader.first)
            check_rows(&name_reader, 0, items)
            check_rows(&content_reader, 0, items)
    base_timestamp = timestamp_ms if times == NULL else times[start]
    max_timestamp = base_timestamp
    capacity = max(min(limit_bytes, 1 << 20), reserve + 1024)
    used = reserve
    out = PyByteArray_FromStringAndSize(NULL, capacity)
    memset(PyByteArray_AS_STRING(out), 0, reserve)
    for row in range(start, stop):
        timestamp = timestamp_ms if times == NULL else times[row]
        delta = <int64_t> (<uint64_t> timestamp - <uint64_t> base_timestamp)
        key = cell(&key_reader, row, &key_size)
        value = cell(&value_reader, row, &value_size)
        if key_size == -2 or value_size == -2:
            raise IndexError("a column's offsets point outside its data")
        items_from = items_to = 0
        headers_size = 1
        if has_headers:
            list_row = row + list_reader.first
            if is_valid(&list_reader, list_row):
                items_from, items_to = offset_at(&list_reader, list_row), offset_at(&list_reader, list_row + 1)
                if items_from < 0 or items_to < items_from or items_to > items:
                    raise IndexError("a column's offsets point outside its data")
            headers_size = size_of(items_to - items_from)
            for item in range(items_from, items_to):
                cell(&name_reader, item, &name_size)
                cell(&content_reader, item, &content_size)
                if name_size == -1:
                    raise ValueError(FLAWS[NO_NAME])
                if name_size == -2 or content_size == -2:
                    raise IndexError("a column's offsets point outside its data")
                headers_size += size_of(name_size) + name_size + size_of(content_size) + max(content_size, 0)
        body = 1 + size_of(delta) + size_of(count) + headers_size
        body += size_of(key_size) + max(key_size, 0) + size_of(value_size) + max(value_size, 0)
        need = used + size_of(body) + body
        if count and need > limit_bytes:
            break
        if need > capacity:
            capacity = max(need, min(limit_bytes, 2 * capacity))
            PyByteArray_Resize(out, capacity)
        at = put(<uint8_t*> PyByteArray_AS_STRING(out) + used, body)
        at[0] = 0
        at = put(put(at + 1, delta), count)
        at = put_bytes(at, key, key_size)
        at = put_bytes(at, value, value_size)
        at = put(at, items_to - items_from)
        for item in range(items_from, items_to):
            text = cell(&name_reader, item, &name_size)
            at = put_bytes(at, text, name_size)
            text = cell(&content_reader, item, &content_size)
            at = put_bytes(at, text, content_size)
        used = need
        count += 1
        if timestamp > max_timestamp:
            max_timestamp = timestamp
    PyByteArray_Resize(out, used)
    return out, count, base_timestamp, max_timestamp


# --- columns out

cdef class Writer:
    """A column being written, with room for `rows` rows and `size` bytes from the start."""

    cdef bytearray offsets
    cdef bytearray data
    cdef bytearray validity
    cdef int32_t* offsets_at
    cdef uint8_t* data_at
    cdef uint8_t* validity_at
    cdef Py_ssize_t row
    cdef Py_ssize_t used
    cdef Py_ssize_t nulls

    def __cinit__(self, Py_ssize_t rows, Py_ssize_t size):
        self.offsets = PyByteArray_FromStringAndSize(NULL, 4 * (rows + 1))
        self.data = PyByteArray_FromStringAndSize(NULL, size)
        self.validity = PyByteArray_FromStringAndSize(NULL, (rows + 7) // 8)
        memset(PyByteArray_AS_STRING(self.validity), 0xFF, (rows + 7) // 8)
        self.offsets_at = <int32_t*> PyByteArray_AS_STRING(self.offsets)
        self.data_at = <uint8_t*> PyByteArray_AS_STRING(self.data)
        self.validity_at = <uint8_t*> PyByteArray_AS_STRING(self.validity)
        self.offsets_at[0] = 0
        self.row = self.used = self.nulls = 0

    cdef inline void append(self, const uint8_t* payload, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
        if begin < 0:
            self.validity_at[self.row >> 3] &= ~(1 << (self.row & 7))
            self.nulls += 1
        else:
            memcpy(self.data_at + self.used, payload + begin, end - begin)
            self.used += end - begin
        self.row += 1
        self.offsets_at[self.row] = <int32_t> self.used

    cdef column(self):
        PyByteArray_Resize(self.offsets, 4 * (self.row + 1))
        PyByteArray_Resize(self.data, self.used)
        PyByteArray_Resize(self.validity, (self.row + 7) // 8)
        return Column(self.offsets, self.data, self.validity if self.nulls else None)


cdef inline int64_t microseconds(int64_t milliseconds) noexcept nogil:
    if milliseconds > INT64_MAX // 1000:
        return INT64_MAX
    if milliseconds < -(INT64_MAX // 1000):
        return -INT64_MAX
    return milliseconds * 1000


def decode_columns(stretches, int64_t from_offset, int64_t to_offset, bint with_headers):
    cdef Py_ssize_t total = 0, rows = 0, row = 0, size, position, at, begin = 0, header_rows = 0
    cdef int64_t count, base_offset, base_timestamp, append_time, index, offset, header_count = 0
    cdef list opened = []
    cdef list rows_of = []
    cdef Py_ssize_t before
    cdef Held held
    cdef const uint8_t* data
    cdef Parsed record
    cdef int flaw = FINE
    for payload, count, base_offset, base_timestamp, append_time in stretches:
        held = Held(payload)
        total += held.size
        if total > 2147483647:
            raise ValueError("more than 2 GiB of records do not fit one set of columns")
        opened.append((held, count, base_offset, base_timestamp, append_time))
    for held, count, _, _, _ in opened:
        # The announced counts size the columns, so they are checked against the payload before anything is allocated.
        rows += max(min(count, held.size // SMALLEST), 0)
    cdef Writer keys = Writer(rows, total)
    cdef Writer values = Writer(rows, total)
    cdef Writer names = Writer(total // 2 if with_headers else 0, total if with_headers else 0)
    cdef Writer contents = Writer(total // 2 if with_headers else 0, total if with_headers else 0)
    cdef bytearray offsets = PyByteArray_FromStringAndSize(NULL, 8 * rows)
    cdef bytearray timestamps = PyByteArray_FromStringAndSize(NULL, 8 * rows)
    cdef bytearray header_offsets = PyByteArray_FromStringAndSize(NULL, 4 * (rows + 1))
    cdef int64_t* offsets_at = <int64_t*> PyByteArray_AS_STRING(offsets)
    cdef int64_t* timestamps_at = <int64_t*> PyByteArray_AS_STRING(timestamps)
    cdef int32_t* header_offsets_at = <int32_t*> PyByteArray_AS_STRING(header_offsets)
    header_offsets_at[0] = 0
    for held, count, base_offset, base_timestamp, append_time in opened:
        size = held.size
        data = held.data if held.data != NULL else <const uint8_t*> b""
        check_count(size, count)
        position = 0
        before = row
        with nogil:
            for index in range(count):
                flaw = parse(data, size, position, &record)
                if flaw:
                    break
                position = record.end
                offset = <int64_t> (<uint64_t> base_offset + <uint64_t> record.offset_delta)
                if offset < from_offset or offset >= to_offset:
                    continue
                offsets_at[row] = offset
                if append_time >= 0:
                    timestamps_at[row] = microseconds(append_time)
                else:
                    timestamps_at[row] = microseconds(
                        <int64_t> (<uint64_t> base_timestamp + <uint64_t> record.timestamp_delta)
                    )
                keys.append(data, record.key_from, record.key_to)
                values.append(data, record.value_from, record.value_to)
                row += 1
                if with_headers:
                    at = record.value_to
                    get_varint(data, &at, record.end, &header_count)
                    while header_count > 0:
                        get_field(data, &at, record.end, &begin)
                        names.append(data, begin, at)
                        get_field(data, &at, record.end, &begin)
                        contents.append(data, begin, at)
                        header_count -= 1
                    header_offsets_at[row] = <int32_t> names.row
        if not flaw and position != size:
            flaw = LEFT_OVER
        if flaw:
            raise ValueError(FLAWS[flaw])
        rows_of.append(row - before)
    PyByteArray_Resize(offsets, 8 * row)
    PyByteArray_Resize(timestamps, 8 * row)
    headers = None
    if with_headers:
        PyByteArray_Resize(header_offsets, 4 * (row + 1))
        headers = HeaderColumns(header_offsets, names.column(), contents.column())
    return rows_of, keys.column(), values.column(), offsets, timestamps, headers


# --- the partitioner

cdef inline uint32_t hash_of(const uint8_t* data, Py_ssize_t length) noexcept nogil:
    cdef uint32_t multiplier = 0x5BD1E995
    cdef uint32_t result = <uint32_t> 0x9747B28C ^ <uint32_t> length
    cdef uint32_t word
    while length >= 4:
        word = data[0] | (<uint32_t> data[1] << 8) | (<uint32_t> data[2] << 16) | (<uint32_t> data[3] << 24)
        word *= multiplier
        word ^= word >> 24
        word *= multiplier
        result *= multiplier
        result ^= word
        data += 4
        length -= 4
    if length > 0:
        word = data[0]
        if length > 1:
            word |= <uint32_t> data[1] << 8
        if length > 2:
            word |= <uint32_t> data[2] << 16
        result ^= word
        result *= multiplier
    result ^= result >> 13
    result *= multiplier
    return result ^ (result >> 15)


def murmur2(const uint8_t[::1] data):
    return hash_of(start_of(data), data.shape[0])


def partition_for_key(const uint8_t[::1] key, int64_t n_partitions):
    if n_partitions <= 0:
        raise ZeroDivisionError("a topic has at least one partition")
    return (hash_of(start_of(key), key.shape[0]) & 0x7FFFFFFF) % n_partitions


def partition_rows(keys, Py_ssize_t rows, int32_t n_partitions, int32_t null_partition):
    cdef list held = []
    cdef Reader reader = column_reader(held, keys)
    cdef bytearray out = PyByteArray_FromStringAndSize(NULL, 4 * rows)
    cdef int32_t* partitions = <int32_t*> PyByteArray_AS_STRING(out)
    cdef Py_ssize_t row, size = 0
    cdef const uint8_t* key
    check_rows(&reader, 0, rows)
    if n_partitions <= 0:
        raise ZeroDivisionError("a topic has at least one partition")
    for row in range(rows):
        key = cell(&reader, row, &size)
        if size == -2:
            raise IndexError("a column's offsets point outside its data")
        partitions[row] = null_partition if size < 0 else <int32_t> (hash_of(key, size) & 0x7FFFFFFF) % n_partitions
    return out
