"""Methods of a client that one of its parts carries out. A client has parts; it does not inherit from them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
Part = TypeVar("Part")


def method_of(part: str, method: Callable[Concatenate[Part, P], T]) -> Callable[Concatenate[Any, P], T]:
    """A method that calls `method` of the part in the attribute `part`, with the same arguments and docstring.

    >>> class Engine:
    ...     def start(self, gear: int) -> str:
    ...         return f"started in gear {gear}"
    >>> class Car:
    ...     def __init__(self) -> None:
    ...         self._engine = Engine()
    ...     start = method_of("_engine", Engine.start)
    >>> Car().start(1)
    'started in gear 1'
    """

    @functools.wraps(method)
    async def call_async(self: Any, /, *arguments: P.args, **named: P.kwargs) -> Any:
        return await cast(Any, method)(getattr(self, part), *arguments, **named)

    @functools.wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> T:
        return method(getattr(self, part), *arguments, **named)

    return cast(Any, call_async) if inspect.iscoroutinefunction(method) else call
