"""A property that is computed when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Value = TypeVar("Value")


class cached_property(Generic[Value]):  # noqa: N801, as in functools
    """What `functools.cached_property` is from Python 3.12 on: nobody waits for anybody.

    In Python 3.11 it holds one lock for all instances of a class. Threads would wait for each
    other, and a child forked meanwhile for a thread that it does not have.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...
    def __get__(self, instance: object | None, owner: type) -> Self | Value:
        if instance is None:
            return self
        # What stands in the instance is found before this is asked again.
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
