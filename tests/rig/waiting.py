"""Waiting for a condition, never for a time: the one place of the tests that polls."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
async def wait_until(
    predicate: Callable[[], Awaitable[T | None]], timeout: float = ..., *, every: float = ..., what: str = ...
) -> T: ...
@overload
async def wait_until(
    predicate: Callable[[], T | None], timeout: float = ..., *, every: float = ..., what: str = ...
) -> T: ...
async def wait_until(
    predicate: Callable[[], Any], timeout: float = 10.0, *, every: float = 0.02, what: str = ""
) -> Any:
    """The first truthy value of `predicate`, a plain or an async function. Units: seconds. Errors: AssertionError."""
    ends = time.monotonic() + timeout
    while True:
        value = predicate()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() >= ends:
            name = what or getattr(predicate, "__qualname__", repr(predicate))
            raise AssertionError(f"not within {timeout} s: {name} (last value {value!r:.300})")
        await asyncio.sleep(every)
