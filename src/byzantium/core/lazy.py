"""A property that is computed when first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801, as in functools
        """A property that is computed once, when it is first asked for, and then stored.

        It is `functools.cached_property` as of Python 3.12, without a lock. That of Python 3.11
        holds one lock for all instances of a class: threads wait for each other, and a forked child
        may wait for ever for a thread that it does not have.

        >>> class Circle:
        ...     @cached_property
        ...     def area(self) -> float:
        ...         print("computing")
        ...         return 3.14
        >>> circle = Circle()
        >>> circle.area + circle.area
        computing
        6.28
        """

        def __init__(self, compute):
            self._compute = compute
            self._name = compute.__name__
            self.__doc__ = compute.__doc__

        def __get__(self, instance, owner):
            if instance is None:
                return self
            # Python looks in the instance first, so from now on this is not asked again.
            value = instance.__dict__[self._name] = self._compute(instance)
            return value
