"""Compiles (message, version) into one flat function, so that versions cost nothing when messages are read or written.

A decoder never trusts a length: before anything is allocated, every count is compared with the bytes that are left and
the smallest size of an element. Adjacent fixed-width fields, with the length or count that follows them, are read or
written by one `struct`. The source of every function is in `linecache`: a traceback shows it and a debugger can step
through it.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct, calcsize, pack, unpack_from
from typing import Any
from uuid import UUID

from semel.errors import invariant
from semel.wire.primitives import (
    MOST_STRING_BYTES,
    Malformed,
    TooManyElements,
    count_of_tagged,
    lie,
    long_string,
    null,
    read_unsigned_varint,
    rest_of_varint,
    skip_tagged_fields,
    unsigned_varint,
    uuid_of,
)
from semel.wire.schema import FIXED, Field, about, fields_of

#: Records below this size are copied into the message: a copy is cheaper than another buffer for the socket.
SMALL_RECORDS_BYTES = 4096

_NAMES: dict[str, Any] = {
    "Malformed": Malformed,
    "TooManyElements": TooManyElements,
    "count_of_tagged": count_of_tagged,
    "lie": lie,
    "long_string": long_string,
    "null": null,
    "pack": pack,
    "read_varint": read_unsigned_varint,
    "rest_of_varint": rest_of_varint,
    "skip_tagged": skip_tagged_fields,
    "unpack_from": unpack_from,
    "uuid_of": uuid_of,
    "varint": unsigned_varint,
    "new": object.__new__,
}


def decoder(message_class: type[Any], version: int) -> Callable[..., Any]:
    """`decode(view, position, end, left) -> (message, position after it)`.

    `left` is how many elements all arrays together may have.
    """
    return _Decoder(message_class, version).compiled()


def encoder(message_class: type[Any], version: int) -> Callable[..., Any]:
    """`encode(message, out: bytearray, parts: list)`: appends the encoded buffers to `parts`; `out` is the first."""
    return _Encoder(message_class, version).compiled()


class _Writer:
    """Collects lines of source, the names they use, and the run of fixed-width fields that is not written yet."""

    def __init__(self, root: type[Any], version: int) -> None:
        self.root = root
        self.version = version
        self.flexible = version >= about(root).flexible
        self.scope = dict(_NAMES)
        self.lines: list[str] = []
        self.depth = 1
        self.counter = 0
        self.run: list[tuple[str, str]] = []

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def constant(self, stem: str, value: object) -> str:
        name = self.fresh(stem)
        self.scope[name] = value
        return name

    def flush(self) -> None:
        raise NotImplementedError

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        """An indented block. A run of fields never crosses its edges."""
        self.flush()
        self.line(opening)
        self.depth += 1
        yield
        self.flush()
        self.depth -= 1

    def finish(self, name: str, arguments: str) -> Callable[..., Any]:
        source = f"def {name}({arguments}):\n" + "\n".join(self.lines) + "\n"
        filename = f"<{name} {self.root.__name__} version {self.version}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        exec(compile(source, filename, "exec"), self.scope)
        compiled: Callable[..., Any] = self.scope[name]
        return compiled

    def tagged(self, cls: type[Any]) -> list[Field]:
        """The tagged fields of this version, in the order they are written."""
        known = [f for f in fields_of(cls) if f.spec.tag is not None and f.present_in(self.version)]
        return sorted(known, key=lambda f: f.spec.tag or 0)

    def default(self, field: Field) -> str:
        value = field.spec.default
        if value is list:
            return "[]"
        if isinstance(value, type):
            return self.constant("Default", value) + "()"
        if isinstance(value, UUID):
            return self.constant("uuid", value)
        return repr(value)

    def length_code(self, field: Field) -> str:
        """The `struct` code of the length in front of a string, bytes or an array, where it is not compact."""
        return "h" if field.kind == "String" and not field.array else "i"

    def least_bytes(self, field: Field, *, element: bool = False) -> int:
        """The fewest bytes a field, or one element of an array, takes in this version."""
        if field.array and not element:
            return 1 if self.flexible else 4
        if field.kind in FIXED:
            return calcsize(">" + FIXED[field.kind])
        if field.kind == "struct":
            return 1 if field.nullable_in(self.version) and not element else self.least_struct_bytes(field.struct)
        return 1 if self.flexible else (2 if field.kind == "String" else 4)

    def least_struct_bytes(self, cls: type[Any] | None) -> int:
        assert cls is not None
        plain = [f for f in fields_of(cls) if f.present_in(self.version) and f.spec.tag is None]
        return sum(self.least_bytes(f) for f in plain) + self.flexible


class _Decoder(_Writer):
    def compiled(self) -> Callable[..., Any]:
        self.line(f"message = new({self.constant('Message', self.root)})")
        self.struct(self.root, "message")
        self.flush()
        self.line("return message, p")
        return self.finish("decode", "v, p, end, left")

    def flush(self) -> None:
        if not self.run:
            return
        if self.run == [("B", "n")]:
            self.run = []
            self.line("n = v[p]; p += 1")
            return
        layout = Struct(">" + "".join(code for code, _ in self.run))
        unpack = self.constant("unpack", layout.unpack_from)
        raws = []
        targets = []
        for code, target in self.run:
            if code == "16s":
                raws.append((target, raw := self.fresh("raw")))
                target = raw
            targets.append(target)
        self.run = []
        self.line(f"{', '.join(targets)}, = {unpack}(v, p); p += {layout.size}")
        for target, raw in raws:
            self.line(f"{target} = uuid_of({raw})")

    def struct(self, cls: type[Any], owner: str) -> None:
        for field in fields_of(cls):
            target = f"{owner}.{field.name}"
            if field.spec.tag is not None or not field.present_in(self.version):
                self.line(f"{target} = {self.default(field)}")
            else:
                self.value(field, target)
        if self.flexible:
            self.tagged_fields(cls, owner)

    def tagged_fields(self, cls: type[Any], owner: str) -> None:
        self.run.append(("B", "n"))
        self.flush()
        known = self.tagged(cls)
        if not known:
            with self.block("if n:"):
                self.counted()
                self.line("p = skip_tagged(v, p, n, end)")
            return
        after = self.fresh("after")
        with self.block("if n:"):
            self.counted()
            self.line("if n > 127: n, p = count_of_tagged(v, p, n)")
            with self.block("for _ in range(n):"):
                self.line("tag, p = read_varint(v, p)")
                self.line("n, p = read_varint(v, p)")
                self.line(f"{after} = p + n")
                self.line(f"if {after} > end: lie('a tagged field', n, p, end)")
                for field in known:
                    with self.block(f"if tag == {field.spec.tag}:"):
                        self.value(field, f"{owner}.{field.name}")
                        self.flush()
                        wrong = f"tagged field {field.name} is not as long as it claims"
                        self.line(f"if p != {after}: raise Malformed({wrong!r})")
                        self.line("continue")
                self.line(f"p = {after}")

    def value(self, field: Field, target: str) -> None:
        if field.array:
            self.array(field, target)
        elif field.kind in FIXED:
            self.run.append((FIXED[field.kind], target))
        elif field.kind == "struct":
            self.inner_struct(field, target)
        else:
            with self.length(field, target) as nullable:
                if nullable:
                    self.line("else:")
                    self.depth += 1
                self.bounded(field)
                self.line(f"{target} = {self.slice(field.kind)}; p = e")
                self.depth -= nullable

    def counted(self) -> None:
        """`n` more elements, of those that all arrays and tagged fields together may have."""
        self.line("left -= n")
        self.line("if left < 0: raise TooManyElements()")

    def bounded(self, field: Field) -> None:
        """Hold a length against the bytes that are left, and a string's against what Kafka takes in any version."""
        if field.kind == "String" and self.flexible:
            self.line(f"if n > {MOST_STRING_BYTES}: long_string({field.name!r}, n, p)")
        self.line("e = p + n")
        self.line(f"if e > end: lie({field.name!r}, n, p, end)")

    def slice(self, kind: str) -> str:
        return {"String": "str(v[p:e], 'utf-8')", "Bytes": "bytes(v[p:e])", "Records": "v[p:e]"}[kind]

    @contextmanager
    def length(self, field: Field, target: str) -> Iterator[bool]:
        """Read a length into `n` and deal with null; yields whether the rest belongs under `else:`."""
        self.run.append(("B" if self.flexible else self.length_code(field), "n"))
        self.flush()
        if self.flexible:
            self.line("if n > 127: n, p = rest_of_varint(v, p, n)")
            self.line("n -= 1")
        nullable = field.nullable_in(self.version)
        self.line(f"if n < 0: {target} = None" if nullable else f"if n < 0: null({field.name!r}, p)")
        yield nullable

    def array(self, field: Field, target: str) -> None:
        least = self.least_bytes(field, element=True)
        invariant(least > 0, f"an element of {field.name} takes no bytes: its count could not be checked")
        with self.length(field, target) as nullable:
            if nullable:
                self.line("else:")
                self.depth += 1
            self.line(f"if n * {least} > end - p: lie({field.name!r}, n, p, end)")
            self.counted()
            if field.kind == "Uuid":
                self.line(f"{target} = [uuid_of(bytes(v[i:i + 16])) for i in range(p, p + 16 * n, 16)]; p += 16 * n")
            elif field.kind in FIXED:
                code = FIXED[field.kind]
                self.line(f"{target} = list(unpack_from(f'>{{n}}{code}', v, p)); p += {least} * n")
            else:
                self.elements(field, target)
            self.depth -= nullable

    def elements(self, field: Field, target: str) -> None:
        items = self.fresh("items")
        self.line(f"{items} = {target} = []")
        with self.block("for _ in range(n):"):
            if field.kind == "struct":
                assert field.struct is not None
                item = self.fresh("item")
                self.line(f"{item} = new({self.constant('Struct', field.struct)})")
                self.struct(field.struct, item)
                self.flush()
                self.line(f"{items}.append({item})")
            else:
                self.run.append(("B" if self.flexible else ("h" if field.kind == "String" else "i"), "n"))
                self.flush()
                if self.flexible:
                    self.line("if n > 127: n, p = rest_of_varint(v, p, n)")
                    self.line("n -= 1")
                self.line(f"if n < 0: null({field.name!r}, p)")
                self.bounded(field)
                self.line(f"{items}.append({self.slice(field.kind)}); p = e")

    def inner_struct(self, field: Field, target: str) -> None:
        assert field.struct is not None
        inner = self.fresh("inner")
        made = f"{inner} = {target} = new({self.constant('Struct', field.struct)})"
        if not field.nullable_in(self.version):
            self.line(made)
            self.struct(field.struct, inner)
            return
        self.run.append(("b", "n"))
        self.flush()
        self.line(f"if n {'<' if field.spec.tag is None else '<='} 0: {target} = None")
        with self.block("else:"):
            self.line(made)
            self.struct(field.struct, inner)


class _Encoder(_Writer):
    def compiled(self) -> Callable[..., Any]:
        self.out = "out"
        self.struct(self.root, "message")
        self.flush()
        self.line("if out: parts.append(out)")
        return self.finish("encode", "message, out, parts")

    def flush(self) -> None:
        if not self.run:
            return
        if self.run == [("x", "")]:
            self.run = []
            self.line(f"{self.out}.append(0)")
            return
        packer = self.constant("pack", Struct(">" + "".join(code for code, _ in self.run)).pack)
        values = ", ".join(value for code, value in self.run if code != "x")
        self.run = []
        self.line(f"{self.out} += {packer}({values})")

    def struct(self, cls: type[Any], owner: str) -> None:
        for field in fields_of(cls):
            if field.spec.tag is None and field.present_in(self.version):
                self.value(field, f"{owner}.{field.name}")
        if self.flexible:
            self.tagged_fields(cls, owner)

    def tagged_fields(self, cls: type[Any], owner: str) -> None:
        known = self.tagged(cls)
        if not known:
            self.run.append(("x", ""))
            return
        self.flush()
        count, written, enclosing = self.fresh("count"), self.fresh("tagged"), self.out
        self.line(f"{count} = 0; {written} = b''")
        for field in known:
            value = f"{owner}.{field.name}"
            with self.block(f"if {self.differs(field, value)}:"):
                self.out = self.fresh("tag")
                self.line(f"{self.out} = bytearray()")
                self.value(field, value)
                self.flush()
                tag = unsigned_varint(field.spec.tag or 0)
                self.line(f"{count} += 1; {written} += {tag!r} + varint(len({self.out})) + {self.out}")
                self.out = enclosing
        self.line(f"if {count}: {self.out} += varint({count}) + {written}")
        self.line(f"else: {self.out}.append(0)")

    def differs(self, field: Field, value: str) -> str:
        """Whether a tagged field has anything to say: defaults are left out."""
        default = field.spec.default
        if default is None:
            return f"{value} is not None"
        if default is list and not field.nullable:
            return value
        if field.struct is not None and isinstance(default, type) and default is not list and not field.nullable:
            inner = [f for f in fields_of(field.struct) if f.present_in(self.version)]
            if all(f.kind in FIXED and not f.array for f in inner):
                return " or ".join(f"{value}.{f.name} != {self.default(f)}" for f in inner)
        return f"{value} != {self.default(field)}"

    def value(self, field: Field, value: str) -> None:
        if field.array:
            self.array(field, value)
        elif field.kind == "Uuid":
            self.run.append(("16s", f"{value}.bytes"))
        elif field.kind in FIXED:
            self.run.append((FIXED[field.kind], value))
        elif field.kind == "struct":
            self.inner_struct(field, value)
        elif field.kind == "Records":
            self.records(field, value)
        else:
            data = self.fresh("data")
            self.line(f"{data} = {value}")
            with self.unless_null(field, data):
                if field.kind == "String":
                    self.line(f"{data} = {data}.encode()")
                self.length(f"len({data})", self.length_code(field))
                self.flush()
                self.line(f"{self.out} += {data}")

    @contextmanager
    def unless_null(self, field: Field, data: str) -> Iterator[None]:
        """What is written when `data` is None is a null; the block is for when it is something."""
        if not field.nullable_in(self.version):
            yield
            return
        with self.block(f"if {data} is None:"):
            nothing = b"\0" if self.flexible else b"\xff" * calcsize(self.length_code(field))
            self.line(f"{self.out} += {nothing!r}")
        with self.block("else:"):
            yield

    def length(self, count: str, code: str) -> None:
        if not self.flexible:
            self.run.append((code, count))
            return
        self.flush()
        self.line(f"n = {count} + 1")
        self.line(f"if n < 128: {self.out}.append(n)")
        self.line(f"else: {self.out} += varint(n)")

    def array(self, field: Field, value: str) -> None:
        items = self.fresh("items")
        self.line(f"{items} = {value}")
        with self.unless_null(field, items):
            self.length(f"len({items})", "i")
            self.flush()
            if field.kind in FIXED and field.kind != "Uuid":
                self.line(f"if {items}: {self.out} += pack(f'>{{len({items})}}{FIXED[field.kind]}', *{items})")
                return
            item = self.fresh("item")
            with self.block(f"for {item} in {items}:"):
                if field.kind == "struct":
                    assert field.struct is not None
                    self.struct(field.struct, item)
                elif field.kind == "Uuid":
                    self.line(f"{self.out} += {item}.bytes")
                else:
                    if field.kind == "String":
                        self.line(f"{item} = {item}.encode()")
                    self.length(f"len({item})", "h" if field.kind == "String" else "i")
                    self.flush()
                    self.line(f"{self.out} += {item}")

    def inner_struct(self, field: Field, value: str) -> None:
        assert field.struct is not None
        inner = self.fresh("inner")
        self.line(f"{inner} = {value}")
        if not field.nullable_in(self.version):
            self.struct(field.struct, inner)
            return
        with self.block(f"if {inner} is None:"):
            # One byte in front of a nullable struct: 1 before a struct, -1 for null, but 0 inside a tagged field.
            self.line(f"{self.out}.append({255 if field.spec.tag is None else 0})")
        with self.block("else:"):
            self.run.append(("b", "1"))
            self.struct(field.struct, inner)

    def records(self, field: Field, value: str) -> None:
        """Payloads become parts of their own, so that a fetched batch goes from the log to the socket uncopied."""
        invariant(self.out == "out", f"{field.name} is a payload in a tagged field")
        data = self.fresh("data")
        self.line(f"{data} = {value}")
        with self.unless_null(field, data):
            with self.block(f"if type({data}) is list:"):
                self.length(f"sum(map(len, {data}))", "i")
                self.flush()
                self.line(f"parts.append(out); parts += {data}; out = bytearray()")
            with self.block("else:"):
                self.length(f"len({data})", "i")
                self.flush()
                self.line(f"if len({data}) < {SMALL_RECORDS_BYTES}: out += {data}")
                self.line(f"else: parts.append(out); parts.append({data}); out = bytearray()")
