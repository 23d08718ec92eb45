"""A small language for loops over columns, which `compiler` compiles.

Python runs once, to write a function down; the function then runs over millions of columns. So a
Python `for` writes its body many times over, one after the other, and `with function.loop(...)`
writes it once, to be run many times.

*Registers.* A processor computes with what it holds in registers: 16 or 32 of them, each a *vector*
of 16 to 64 bytes, whose *lanes* are computed at once, for the price of one. A `Value` is such a
vector, or a single number; its lanes are neighboring columns. Values are never changed; x + y is
a new one. The compiler divides vectors that are wider than a register, and stores
values for which there is no register in memory.

*Memory.* An `Array` is the address of numbers of one type; they are loaded into lanes and stored
from lanes. Loads from distant memory are slow, so kernels work on blocks of columns that stay in
the nearest cache, and `prefetch` what they need next.

*Tails.* The number of columns is seldom a multiple of the lanes. The last vector is loaded and
stored with a bound, `before`: lanes that lie beyond it are loaded as zeros, and are not stored.

The result is LLVM's intermediate representation: https://llvm.org/docs/LangRef.html.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import TypeAlias

FLOAT, DOUBLE, INTEGER, ADDRESS = "float", "double", "i64", "ptr"
BYTE, TRUTH = "i8", "i1"
BITS = {FLOAT: "i32", DOUBLE: INTEGER}  # whole numbers of the same size
SIZE = {FLOAT: 4, BITS[FLOAT]: 4, DOUBLE: 8, INTEGER: 8, ADDRESS: 8, BYTE: 1}


def _type(kind: str, lanes: int) -> str:
    return kind if lanes == 1 else f"<{lanes} x {kind}>"


class Value:
    """Numbers of one type, one in each lane, in the function that computes them."""

    def __init__(self, function: Function, kind: str, lanes: int, text: str) -> None:
        self.function, self.kind, self.lanes, self.text = function, kind, lanes, text

    @property
    def type(self) -> str:
        return _type(self.kind, self.lanes)

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    def _computed(self, text: str, kind: str | None = None, lanes: int | None = None) -> Value:
        return self.function.value(kind or self.kind, lanes or self.lanes, text)

    def _with(self, real: str, integer: str, other: Operand, kind: str | None = None) -> Value:
        operation = real if self.kind in (FLOAT, DOUBLE) else integer
        other = self.function.constant(other, self.kind, self.lanes)
        return self._computed(f"{operation} {self}, {other.text}", kind)

    def __add__(self, other: Operand) -> Value:
        return self._with("fadd", "add", other)

    def __sub__(self, other: Operand) -> Value:
        return self._with("fsub", "sub", other)

    def __mul__(self, other: Operand) -> Value:
        return self._with("fmul", "mul", other)

    def __truediv__(self, other: Operand) -> Value:
        return self._with("fdiv", "sdiv", other)

    def __mod__(self, other: Operand) -> Value:
        return self._with("frem", "srem", other)

    def __lt__(self, other: Operand) -> Value:
        """True in the lanes where it is less; false beside NaN."""
        return self._with("fcmp olt", "icmp slt", other, TRUTH)

    def __neg__(self) -> Value:
        return self._computed(f"fneg {self}")

    def to(self, kind: str) -> Value:
        """The same numbers as FLOAT or DOUBLE, or a BYTE, from 0 to 255, as INTEGER."""
        if kind == self.kind:
            return self
        if self.kind == BYTE:
            return self._computed(f"zext {self} to {_type(kind, self.lanes)}", kind)
        step = "sitofp" if self.kind in BITS.values() else "fpext" if kind == DOUBLE else "fptrunc"
        return self._computed(f"{step} {self} to {_type(kind, self.lanes)}", kind)

    def read_as(self, kind: str) -> Value:
        """The bits of an integer, as an address or as DOUBLE."""
        if kind == self.kind:
            return self
        return self._computed(
            f"{'inttoptr' if kind == ADDRESS else 'bitcast'} {self} to {kind}", kind
        )

    def on(self, lanes: int) -> Value:
        """The one number in many lanes."""
        if lanes == self.lanes:
            return self
        nothing = Value(self.function, self.kind, lanes, "poison")
        first = self._computed(f"insertelement {nothing}, {self}, i64 0", lanes=lanes)
        every = f"<{lanes} x i32> zeroinitializer"
        return self._computed(f"shufflevector {first}, {nothing}, {every}", lanes=lanes)

    def sum(self) -> Value:
        """The sum of all lanes, in an order that depends only on their number."""
        if self.lanes == 1:
            return self
        zero = self.function.constant(-0.0, self.kind)
        name = f"llvm.vector.reduce.fadd.{_suffix(self)}"
        return self.function.operation(name, zero, zero, self, flags="reassoc ")


Operand: TypeAlias = Value | int | float


def _suffix(value: Value) -> str:
    """The end of the names of LLVM's operations on values of this type."""
    kind = {FLOAT: "f32", DOUBLE: "f64"}.get(value.kind, value.kind)
    return kind if value.lanes == 1 else f"v{value.lanes}{kind}"


def select(truth: Value, one: Value, other: Value) -> Value:
    """The first value where the condition is true, the second elsewhere."""
    return one.function.value(one.kind, one.lanes, f"select {truth}, {one}, {other}")


def minimum(a: Value, b: Value) -> Value:
    return select(a < b, a, b)


def maximum(a: Value, b: Value) -> Value:
    """The operand that `minimum` does not return, also for zeros of two signs, and for NaN."""
    return select(a < b, b, a)


def fma(a: Value, b: Value, c: Value) -> Value:
    """The product of a and b, plus c, rounded once."""
    return a.function.operation(f"llvm.fma.{_suffix(a)}", a, a, b, c)


def magnitude(a: Value) -> Value:
    """The bits of a without the sign: integers that grow with its size, and are largest for NaN."""
    kind = BITS[a.kind]
    bits = a.function.value(kind, a.lanes, f"bitcast {a} to {_type(kind, a.lanes)}")
    mask = a.function.constant(2 ** (8 * SIZE[kind] - 1) - 1, kind, a.lanes)
    return a.function.value(kind, a.lanes, f"and {bits}, {mask.text}")


def larger(a: Value, b: Value) -> Value:
    """The larger of unsigned integers."""
    return a.function.operation(f"llvm.umax.{_suffix(a)}", a, a, b)


def sqrt(a: Value) -> Value:
    return a.function.operation(f"llvm.sqrt.{_suffix(a)}", a, a)


class Array:
    """Numbers of one type in memory, from an address on."""

    def __init__(self, address: Value, kind: str) -> None:
        self.address, self.kind = address, kind
        self.function = address.function

    def at(self, index: Operand) -> Array:
        """The array that begins there."""
        index = self.function.constant(index, INTEGER)
        text = f"getelementptr {self.kind}, {self.address}, {index}"
        return Array(self.function.value(ADDRESS, 1, text), self.kind)

    def load(self, index: Operand, lanes: int = 1, before: Operand | None = None) -> Value:
        """The numbers from `index` on; zero where they do not lie before the bound."""
        function, place = self.function, self.at(index).address
        zero = function.constant(0, self.kind, lanes)
        if before is None:
            text = f"load {zero.type}, {place}, align {SIZE[self.kind]}"
            return function.value(self.kind, lanes, text)
        mask = function.lanes_before(index, before, lanes)
        name = f"llvm.masked.load.{_suffix(zero)}.p0"
        return function.operation(name, zero, place, self._alignment, mask, zero)

    def store(self, index: Operand, value: Value, before: Operand | None = None) -> None:
        """Store the lanes from `index` on; only those that lie before the bound."""
        function, place = self.function, self.at(index).address
        if before is None:
            function.write(f"store {value}, {place}, align {SIZE[self.kind]}")
        else:
            mask = function.lanes_before(index, before, value.lanes)
            name = f"llvm.masked.store.{_suffix(value)}.p0"
            function.perform(name, value, place, self._alignment, mask)

    def increment(self, index: Operand) -> Value:
        """The integer at the index, which then grows by one: no two threads get the same."""
        place = self.at(index).address
        return self.function.value(self.kind, 1, f"atomicrmw add {place}, {self.kind} 1 monotonic")

    def prefetch(self, index: Operand) -> None:
        """Bring what is there into the cache. It need not lie within the array."""
        details = [Value(self.function, "i32", 1, text) for text in ("0", "3", "1")]
        self.function.perform("llvm.prefetch.p0", self.at(index).address, *details)

    @property
    def _alignment(self) -> Value:
        return Value(self.function, "i32", 1, str(SIZE[self.kind]))


class Variable:
    """A value that changes from one run of a loop to the next."""

    def __init__(self, place: Value, first: Value) -> None:
        self._place, self._first = place, first
        self.value = first

    @property
    def value(self) -> Value:
        first = self._first
        return first.function.value(first.kind, first.lanes, f"load {first.type}, {self._place}")

    @value.setter
    def value(self, value: Value) -> None:
        value.function.write(f"store {value}, {self._place}")


class Function:
    """A function that is being written. Its parameters are declared first, in order.

    No two of its arrays may overlap, if anything is stored in them.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.declarations: dict[str, None] = {}
        self._parameters: list[Value] = []
        self._variables: list[str] = []
        self._lines: list[str] = []
        self._numbers = count()

    @property
    def parameters(self) -> dict[str, str]:
        """The names of its parameters, and the type of each."""
        return {value.text.removeprefix("%"): value.kind for value in self._parameters}

    def __str__(self) -> str:
        parameters = [
            f"ptr noalias {value.text}" if value.kind == ADDRESS else str(value)
            for value in self._parameters
        ]
        start = f"define void @{self.name}({', '.join(parameters)}) {{"
        return "\n".join([start, *self._variables, *self._lines, "  ret void", "}"])

    # -- for kernels --

    def number(self, name: str, kind: str = INTEGER) -> Value:
        """A parameter that is a number."""
        self._parameters.append(Value(self, kind, 1, f"%{name}"))
        return self._parameters[-1]

    def array(self, name: str, kind: str) -> Array:
        """A parameter that is an array."""
        return Array(self.number(name, ADDRESS), kind)

    def constant(self, number: Operand, kind: str, lanes: int = 1) -> Value:
        """A constant in every lane; a value is returned unchanged."""
        if isinstance(number, Value):
            return number
        real = kind in (FLOAT, DOUBLE)
        text = f"0x{struct.pack('>d', number).hex()}" if real else str(number)
        if lanes > 1:
            text = f"<{', '.join([f'{kind} {text}'] * lanes)}>"
        return Value(self, kind, lanes, text)

    def variable(self, first: Value) -> Variable:
        place = Value(self, ADDRESS, 1, f"%.{next(self._numbers)}")
        self._variables.append(f"  {place.text} = alloca {first.type}")
        return Variable(place, first)

    @contextmanager
    def loop(self, first: Operand, last: Operand | Variable, step: Operand = 1) -> Iterator[Value]:
        """The body runs for first, first + step, ... as long as that is < last.

        If `last` is a variable, it may change meanwhile.
        """

        def before_last(index: Value) -> Value:
            return index < (last.value if isinstance(last, Variable) else last)

        first = self.constant(first, INTEGER)
        index, number = self.variable(first), next(self._numbers)
        ways = f"label %body{number}, label %end{number}"
        self.write(f"br {before_last(first)}, {ways}")
        self._lines.append(f"body{number}:")
        now = index.value
        yield now
        index.value = now + step
        self.write(f"br {before_last(index.value)}, {ways}")
        self._lines.append(f"end{number}:")

    @contextmanager
    def when(self, truth: Value) -> Iterator[None]:
        """The body runs if the condition is true."""
        number = next(self._numbers)
        self.write(f"br {truth}, label %body{number}, label %end{number}")
        self._lines.append(f"body{number}:")
        yield
        self.write(f"br label %end{number}")
        self._lines.append(f"end{number}:")

    def columns(
        self, first: Operand, last: Operand, lanes: int
    ) -> Iterator[tuple[Value, Value | None]]:
        """Loops over whole vectors, and over the tail: yields where they begin, and the bound.

        Written `for c, bound in function.columns(...)`, the body is written twice.
        """
        first, last = self.constant(first, INTEGER), self.constant(last, INTEGER)
        tail = last - (last - first) % lanes
        with self.loop(first, tail, lanes) as c:
            yield c, None
        with self.loop(tail, last, lanes) as c:
            yield c, last

    def call(self, other: Function | Value, *arguments: Value | Array) -> None:
        """Call another function, or the one at an address, which is a number."""
        name = other.read_as(ADDRESS).text if isinstance(other, Value) else f"@{other.name}"
        texts = (str(a.address if isinstance(a, Array) else a) for a in arguments)
        self.write(f"call void {name}({', '.join(texts)})")

    # -- for values and arrays --

    def write(self, line: str) -> None:
        self._lines.append(f"  {line}")

    def value(self, kind: str, lanes: int, text: str) -> Value:
        """A new value, computed as the text says."""
        value = Value(self, kind, lanes, f"%.{next(self._numbers)}")
        self.write(f"{value.text} = {text}")
        return value

    def operation(self, name: str, like: Value, *arguments: Value, flags: str = "") -> Value:
        """An operation that LLVM knows by name, whose result is of the type of a value."""
        call = self._declared(name, like.type, arguments)
        return self.value(like.kind, like.lanes, f"call {flags}{call}")

    def perform(self, name: str, *arguments: Value) -> None:
        """An operation without a result that LLVM knows by name."""
        self.write(f"call {self._declared(name, 'void', arguments)}")

    def _declared(self, name: str, result: str, arguments: tuple[Value, ...]) -> str:
        kinds = ", ".join(argument.type for argument in arguments)
        self.declarations[f"declare {result} @{name}({kinds})"] = None
        return f"{result} @{name}({', '.join(map(str, arguments))})"

    def lanes_before(self, index: Operand, bound: Operand, lanes: int) -> Value:
        """True in the lanes k with index + k < bound."""
        left = self.constant(bound, INTEGER) - index
        numbers = ", ".join(f"{INTEGER} {k}" for k in range(lanes))
        lane = Value(self, INTEGER, lanes, f"<{numbers}>" if lanes > 1 else "0")
        return lane < left.on(lanes)
