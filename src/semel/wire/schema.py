"""Declares messages: one class for all versions of a message. Versions are attributes of its fields.

    @message(key=26, versions="0-5", flexible=3)
    class EndTxnResponse:
        throttle_time_ms: Int32 = 0
        error_code: Int16 = 0
        producer_id: Int64 = field(-1, since=5)

The classes are plain values with slots, keyword arguments, `repr` and equality. A process imports a hundred of them
before its first request, so declaring one is cheap: `__init__` is generated for the first instance, and codecs for the
first message of a version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, TypeVar, dataclass_transform, overload
from uuid import UUID

from semel.errors import ErrorCode, Refused
from semel.wire.primitives import Buffer

Bool: TypeAlias = bool
Int8: TypeAlias = int
Int16: TypeAlias = int
Int32: TypeAlias = int
Int64: TypeAlias = int
Uint16: TypeAlias = int
Uint32: TypeAlias = int
Float64: TypeAlias = float
String: TypeAlias = str
Bytes: TypeAlias = bytes
Uuid: TypeAlias = UUID
#: Record batches: a memoryview into the frame when decoded; passed through without a copy when encoded.
#: An encoder also takes a list of buffers, which go out one after another.
Records: TypeAlias = Buffer

#: `struct` codes of the types with a fixed width, by the name an annotation uses.
FIXED: dict[str, str] = {
    "Bool": "?",
    "Int8": "b",
    "Int16": "h",
    "Int32": "i",
    "Int64": "q",
    "Uint16": "H",
    "Uint32": "I",
    "Float64": "d",
    "Uuid": "16s",
}
VARIABLE = frozenset({"String", "Bytes", "Records"})

T = TypeVar("T")
FOREVER = 1 << 15

#: The default of a field that is a struct: one with all its own defaults, made afresh for every message.
EMPTY: Any = object()


@dataclass(frozen=True, slots=True)
class Spec:
    """The attributes of a field beyond its type; made by `field`."""

    default: Any
    since: int = 0
    until: int = FOREVER
    tag: int | None = None
    nullable_since: int = 0


@overload
def field(
    default: type[T], *, since: int = 0, until: int = FOREVER, tag: int | None = None, nullable_since: int = 0
) -> T: ...
@overload
def field(
    default: T, *, since: int = 0, until: int = FOREVER, tag: int | None = None, nullable_since: int = 0
) -> T: ...
def field(
    default: Any, *, since: int = 0, until: int = FOREVER, tag: int | None = None, nullable_since: int = 0
) -> Any:
    """Declare a field that not all versions have.

    `list` or `EMPTY` as `default` make a fresh value for every message. `tag` makes it a tagged field;
    `nullable_since` is the first version in which a field annotated `| None` may be null on the wire.
    """
    return Spec(default, since, until, tag, nullable_since)


@dataclass(frozen=True, slots=True)
class Field:
    """A field with its annotation resolved: the input of the compiler."""

    name: str
    #: A key of `FIXED`, one of `VARIABLE`, or "struct"; for an array, the type of its elements.
    kind: str
    struct: type[Any] | None
    array: bool
    nullable: bool
    spec: Spec

    def default(self) -> Any:
        made = self.spec.default
        return made() if isinstance(made, type) else made

    def present_in(self, version: int) -> bool:
        return self.spec.since <= version <= self.spec.until

    def nullable_in(self, version: int) -> bool:
        return self.nullable and version >= self.spec.nullable_since


@dataclass(frozen=True, slots=True)
class About:
    """The arguments of `@message`."""

    key: int
    min_version: int
    max_version: int
    #: The first version with compact lengths and tagged fields; `FOREVER` when there is none.
    flexible: int


class Struct:
    """The base class of messages and of the structs inside them."""

    __slots__ = ()
    __declarations__: ClassVar[dict[str, tuple[str, Spec]]] = {}
    #: The message a struct is declared in; a message is its own root.
    __root__: ClassVar[type[Any]]

    def __init__(self, **given: Any) -> None:
        # Replaced by the class's own __init__ the first time.
        cls = type(self)
        cls.__init__ = _generate_init(cls)  # type: ignore[method-assign]
        cls.__init__(self, **given)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__declarations__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Only the fields that differ from their defaults."""
        shown = []
        for field in fields_of(type(self)):
            value = getattr(self, field.name)
            if isinstance(value, bytes | bytearray | memoryview) and len(value) > 64:
                shown.append(f"{field.name}=<{len(value)} bytes>")
            elif isinstance(value, memoryview):  # its own repr is an address: another one in every run
                shown.append(f"{field.name}={bytes(value)!r}")
            elif value != field.default():
                shown.append(f"{field.name}={value!r}")
        return f"{type(self).__qualname__}({', '.join(shown)})"


def _generate_init(cls: type[Struct]) -> Callable[..., None]:
    """An `__init__` with every field as a keyword argument. Factories run once per message."""
    scope: dict[str, Any] = {"fresh": _FRESH}
    arguments, body = ["self"], []
    for field in fields_of(cls):
        name = field.name
        scope[f"default_{name}"] = field.spec.default
        if isinstance(field.spec.default, type):
            made = "[]" if field.spec.default is list else f"default_{name}()"
            arguments.append(f"{name}=fresh")
            body.append(f" self.{name} = {made} if {name} is fresh else {name}")
        else:
            arguments.append(f"{name}=default_{name}")
            body.append(f" self.{name} = {name}")
    if body:
        arguments.insert(1, "*")
    source = f"def __init__({', '.join(arguments)}):\n" + ("\n".join(body) or " pass")
    exec(compile(source, f"<{cls.__qualname__}.__init__>", "exec"), scope)
    written: Callable[..., None] = scope["__init__"]
    written.__qualname__ = f"{cls.__qualname__}.__init__"
    return written


_FRESH = object()


def _with_slots(cls: type[Any], extra: dict[str, Any]) -> type[Any]:
    """The declared class again, with slots in place of the defaults."""
    namespace = dict(cls.__dict__)
    declarations = {}
    for name, annotation in namespace.get("__annotations__", {}).items():
        default = namespace.pop(name)
        declarations[name] = (annotation, default if isinstance(default, Spec) else Spec(default))
    namespace.pop("__dict__", None)
    namespace.pop("__weakref__", None)
    namespace.update(extra, __qualname__=cls.__qualname__, __slots__=tuple(declarations), __declarations__=declarations)
    return type(cls.__name__, (Struct,), namespace)


@dataclass_transform(kw_only_default=True)
def struct(cls: type[T]) -> type[T]:
    """A struct inside a message. Its fields have the versions of the message."""
    return _with_slots(cls, {})


class Codecs(dict[int, Callable[..., Any]]):
    """Version -> compiled function. Each is compiled when it is first used."""

    __slots__ = ("direction", "owner")

    def __init__(self, direction: str) -> None:
        super().__init__()
        self.direction = direction
        self.owner: type[Any] | None = None

    def __missing__(self, version: int) -> Callable[..., Any]:
        from semel.wire import compiler

        assert self.owner is not None
        about: About = self.owner.__about__
        if not about.min_version <= version <= about.max_version:
            raise Refused(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.owner.__name__} has versions {about.min_version} to {about.max_version}, not {version}",
            )
        compiled: Callable[..., Any] = getattr(compiler, self.direction)(self.owner, version)
        self[version] = compiled
        return compiled


@dataclass_transform(kw_only_default=True)
def message(*, key: int, versions: str, flexible: int | None) -> Callable[[type[T]], type[T]]:
    """A message: the key of its API (-1 without one), its versions, and the first version that is flexible."""
    low, _, high = versions.partition("-")
    about = About(key, int(low), int(high or low), FOREVER if flexible is None else flexible)

    def declare(cls: type[T]) -> type[T]:
        encoders, decoders = Codecs("encoder"), Codecs("decoder")
        rebuilt = _with_slots(cls, {"__about__": about, "__encoders__": encoders, "__decoders__": decoders})
        encoders.owner = decoders.owner = rebuilt.__root__ = rebuilt
        for nested in vars(cls).values():
            if isinstance(nested, type):
                nested.__root__ = rebuilt  # type: ignore[attr-defined]
        return rebuilt

    return declare


def fields_of(cls: type[Any]) -> tuple[Field, ...]:
    """The fields of a message or struct, in the order of the wire, with their annotations resolved."""
    known: tuple[Field, ...] | None = cls.__dict__.get("__fields__")
    if known is None:
        known = tuple(_resolve(cls.__root__, name, *told) for name, told in cls.__declarations__.items())
        cls.__fields__ = known
    return known


def _resolve(root: type[Any], name: str, annotation: str, spec: Spec) -> Field:
    core = annotation.removesuffix(" | None")
    nullable = core != annotation
    array = core.startswith("list[")
    if array:
        core = core[len("list[") : -1]
    inner = None
    if core not in FIXED and core not in VARIABLE:
        inner, core = getattr(root, core.rpartition(".")[2]), "struct"
    if spec.default is EMPTY:
        spec = replace(spec, default=inner)
    return Field(name, core, inner, array, nullable, spec)


def about(message_class: type[Any]) -> About:
    """Key and versions of a message class."""
    told: About = message_class.__about__
    return told
