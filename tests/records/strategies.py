"""What hypothesis makes records and columns from."""

from __future__ import annotations

import string

from hypothesis import strategies as st

from semel.records.batch import Record

fields = st.none() | st.binary(max_size=40)
header_names = st.text(string.printable + "äß€", max_size=8)
headers = st.lists(st.tuples(header_names, fields), max_size=3).map(tuple)
timestamps = st.integers(min_value=-1, max_value=2**45)
records = st.builds(Record, offset=st.just(0), timestamp=timestamps, key=fields, value=fields, headers=headers)
record_lists = st.lists(records, min_size=1, max_size=12)
codecs = st.integers(min_value=0, max_value=4)


def numbered(records: list[Record], base_offset: int = 0) -> list[Record]:
    """The same records with the offsets that a batch gives them."""
    return [record._replace(offset=base_offset + index) for index, record in enumerate(records)]
