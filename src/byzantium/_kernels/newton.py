"""Newton's method for the geometric median as machine code: some microseconds for n x n numbers.

It is for the ordinary case, in which the minimizer is none of the vectors and the sum of distances
is curved in all directions around it. It does not handle corners and flat regions but reports
whether there were any; `geometric_median` has a search that works everywhere, and the derivation of
the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from byzantium._kernels.compiler import kernel
from byzantium._kernels.ir import (
    DOUBLE,
    INTEGER,
    Array,
    Function,
    Value,
    fma,
    maximum,
    minimum,
    select,
    sqrt,
)

# Numbers of a vector; the same on all processors, so that sums are the same, too.
LANES = 8
# Four to six iterations are enough.
MOST_STEPS = 10
# The square of a gradient that is a rounding error, for each pair of rows.
ROUNDED = 1e-28
# A row is at a corner if its distance is less than this share of the sizes whose difference it is:
# larger distances keep eleven digits.
CORNER = 1e-2
PARTS = 10


def size_of(n: int) -> int:
    """n, rounded up to whole vectors."""
    return -(-n // LANES) * LANES


def scratch_size(n: int) -> int:
    """The length of the scratch memory, whose first numbers are the results."""
    size = size_of(n)
    return size * (2 * size + LANES + PARTS) + LANES


@kernel
def newton() -> list[Function]:
    """Minimize a sum of distances, or of Huber's functions with the threshold near > 0.

    - `gram`: inner products about any reference, of which the first n of a row count.
    - `counts`: how often each row counts.
    - `size`: see `size_of`.
    - `scratch`: zeros. Results: scratch[8 + i] is the weight of row i; scratch[0] the square of the
      gradient that is left; scratch[1] the determinant det(H / S), with the Hessian H and
      S = sum_i c_i / e_i, which is 1 where Newton's step is Weiszfeld's; scratch[2] how many rows
      are at a corner.
    """
    function = Function("newton")
    descent = _Descent(function)
    descent.choose_base()
    descent.first_step()
    steps = function.variable(function.constant(MOST_STEPS, INTEGER))
    least = function.variable(function.constant(math.inf, DOUBLE))
    rounded = (descent.n * descent.n).to(DOUBLE) * ROUNDED
    with function.loop(0, steps):
        slope, corners = descent.measure()
        with function.when(slope < least.value):
            descent.save_weights()
            descent.results.store(0, slope)
            descent.results.store(2, corners)
        least.value = minimum(slope, least.value)
        # At a corner nothing is defined.
        remaining = select(slope < math.inf, steps.value, descent.none)
        steps.value = select(least.value < rounded, descent.none, remaining)
        with function.when(descent.none < steps.value):
            descent.results.store(1, descent.step())
    return [function]


class _Descent:
    """The current point, z = w @ x, and its distances; see `geometric_median._Search`.

    Everything is relative to the row `base`, so that the weight of the base never matters.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.gram, self.stride = function.array("gram", DOUBLE), function.number("stride")
        self.counts = function.array("counts", DOUBLE)
        self.n = function.number("n")
        self.size = size = function.number("size")
        self.near = function.number("near", DOUBLE)
        self.results = scratch = function.array("scratch", DOUBLE)
        parts = [scratch.at(size * k + LANES) for k in range(PARTS)]
        self.weights, self.w, self.rows, self.sizes, self.products = parts[:5]
        self.pulls, self.pulled, self.inverses, self.far, self.solution = parts[5:]
        self.based = scratch.at(size * PARTS + LANES)  # (size, size)
        self.system, self.wide = self.based.at(size * size), size + LANES  # (size, wide)
        self.none = function.constant(0, INTEGER)
        self.zeros, self.ones = (function.constant(x, DOUBLE, LANES) for x in (0.0, 1.0))

    def total(self, term: Callable[[Value], Value]) -> Value:
        """The sum of term(c), for vectors of columns."""
        sum_ = self.function.variable(self.zeros)
        with self.function.loop(0, self.size, LANES) as c:
            sum_.value = sum_.value + term(c)
        return sum_.value.sum()

    def multiply(self, vector: Array, out: Array) -> None:
        """The inner products `based`, which are symmetric, times a vector."""
        with self.function.loop(0, self.size, LANES) as c:
            sum_ = self.function.variable(self.zeros)
            with self.function.loop(0, self.n) as j:
                row = self.based.load(j * self.size + c, LANES)
                sum_.value = fma(vector.load(j).on(LANES), row, sum_.value)
            out.store(c, sum_.value)

    def product(self, i: Value, c: Value) -> Value:
        """Inner products of row i with the rows from c on, about the reference of `gram`."""
        return self.gram.load(i * self.stride + c, LANES, i * self.stride + self.n)

    def choose_base(self) -> None:
        """The row with the smallest sum of distances; all inner products are taken about it."""
        function, sizes, rows = self.function, self.sizes, self.rows
        with function.loop(0, self.n) as i:
            rows.store(i, self.counts.load(i))
            sizes.store(i, self.gram.load(i * (self.stride + 1)))
        base = function.variable(self.none)
        smallest = function.variable(function.constant(math.inf, DOUBLE))
        with function.loop(0, self.n) as i:

            def distance(c: Value, i: Value = i) -> Value:
                squares = sizes.load(i).on(LANES) + sizes.load(c, LANES) - self.product(i, c) * 2.0
                return rows.load(c, LANES) * sqrt(maximum(self.zeros, squares))

            sum_ = self.total(distance)
            base.value = select(sum_ < smallest.value, i, base.value)
            smallest.value = minimum(sum_, smallest.value)
        b = base.value
        with function.loop(0, self.n) as i:
            own = self.gram.load(i * self.stride + b) - self.gram.load(b * (self.stride + 1))
            with function.loop(0, self.size, LANES) as c:
                product = self.product(i, c) - self.product(b, c) - own.on(LANES)
                here = select(self.zeros < rows.load(c, LANES), self.ones, self.zeros)
                self.based.store(i * self.size + c, product * here)
        zero = function.constant(0.0, DOUBLE)
        with function.loop(0, self.n) as i:
            sizes.store(i, sqrt(maximum(zero, self.based.load(i * (self.size + 1)))))

    def first_step(self) -> None:
        """The step of Vardi and Zhang, from the base."""
        function, pulls, rows = self.function, self.pulls, self.rows

        def elsewhere(c: Value) -> Value:
            return self.zeros < self.sizes.load(c, LANES)

        with function.loop(0, self.size, LANES) as c:
            pull = rows.load(c, LANES) / self.sizes.load(c, LANES)
            pulls.store(c, select(elsewhere(c), pull, self.zeros))
        self.multiply(pulls, self.pulled)
        strength = sqrt(self.total(lambda c: pulls.load(c, LANES) * self.pulled.load(c, LANES)))
        here = self.total(lambda c: select(elsewhere(c), self.zeros, rows.load(c, LANES)))
        stay = minimum(here / strength, function.constant(1.0, DOUBLE))
        leave = (-stay + 1.0) / self.total(lambda c: pulls.load(c, LANES))
        with function.loop(0, self.size, LANES) as c:
            self.w.store(c, pulls.load(c, LANES) * leave.on(LANES))

    def measure(self) -> tuple[Value, Value]:
        """Distances and pulls at the current point; the square of the gradient, and the corners."""
        function, w, products, pulls = self.function, self.w, self.products, self.pulls
        self.multiply(w, products)
        self.square = self.total(lambda c: w.load(c, LANES) * products.load(c, LANES))
        around = self.total(lambda c: _abs(w.load(c, LANES)) * self.sizes.load(c, LANES))
        corners, near = function.variable(self.zeros), self.near.on(LANES)
        with function.loop(0, self.size, LANES) as c:
            size = self.sizes.load(c, LANES)
            squares = fma(size, size, self.square.on(LANES)) - products.load(c, LANES) * 2.0
            distance = sqrt(maximum(self.zeros, squares))
            e = maximum(near, distance)
            inverse = self.ones / e
            self.inverses.store(c, inverse)
            self.far.store(c, select(near < distance, inverse, self.zeros))
            pulls.store(c, self.rows.load(c, LANES) * inverse)
            corner = e < (size + around.on(LANES)) * CORNER
            corners.value = corners.value + select(corner, self.ones, self.zeros)
        self.multiply(pulls, self.pulled)
        self.pull = self.total(lambda c: pulls.load(c, LANES))

        def square_of_force(c: Value) -> Value:
            pull = self.pull.on(LANES)
            force = pulls.load(c, LANES) - pull * w.load(c, LANES)
            return force * (self.pulled.load(c, LANES) - pull * products.load(c, LANES))

        return _abs(self.total(square_of_force)), corners.value.sum()

    def save_weights(self) -> None:
        """Save the current point, as a convex combination."""
        with self.function.loop(0, self.size, LANES) as c:
            self.weights.store(c, self.pulls.load(c, LANES) / self.pull.on(LANES))

    def step(self) -> Value:
        """Take Newton's step; the determinant of its system.

        In the notation of `geometric_median._Search._newton`, the rows of the system for y are
        multiplied by D^-1: (I - D^-1 K / S) y = D^-1 U_a^T U c / S, with K = U_a^T U_a. By
        Sylvester's identity, its determinant is det(I - U_a D^-1 U_a^T / S) = det(H / S).
        """
        function, products, pulls, w = self.function, self.products, self.pulls, self.w
        cross = self.total(lambda c: pulls.load(c, LANES) * products.load(c, LANES))
        with function.loop(0, self.n) as i:
            row, own = self.system.at(i * self.wide), self.square - products.load(i)
            share = pulls.load(i) * self.far.load(i) / self.pull
            with function.loop(0, self.size, LANES) as c:
                product = self.based.load(i * self.size + c, LANES) - products.load(c, LANES)
                product = self.far.load(c, LANES) * (product + own.on(LANES))
                row.store(c, -(product * share.on(LANES)))
            row.store(i, row.load(i) + 1.0)
            row.store(self.size, share * (self.pulled.load(i) - cross + self.pull * own))
        determinant = self.solve()
        with function.loop(0, self.size, LANES) as c:
            corrected = self.rows.load(c, LANES) + self.solution.load(c, LANES)
            pulls.store(c, self.inverses.load(c, LANES) * corrected)
        pull = self.total(lambda c: pulls.load(c, LANES)).on(LANES)
        with function.loop(0, self.size, LANES) as c:
            before = w.load(c, LANES)
            w.store(c, before + (pulls.load(c, LANES) - pull * before) / self.pull.on(LANES))
        return determinant

    def solve(self) -> Value:
        """Gaussian elimination; the determinant.

        Where the Hessian is positive definite, all pivots are positive: pivoting is not needed.
        """
        function, system, wide, solution = self.function, self.system, self.wide, self.solution
        determinant = function.variable(function.constant(1.0, DOUBLE))
        with function.loop(0, self.n) as k:
            row = system.at(k * wide)
            determinant.value = determinant.value * row.load(k)
            inverse = function.constant(1.0, DOUBLE) / row.load(k)
            with function.loop(k + 1, self.n) as i:
                other = system.at(i * wide)
                factor = (-(other.load(k) * inverse)).on(LANES)
                with function.loop(k - k % LANES, wide, LANES) as c:
                    other.store(c, fma(factor, row.load(c, LANES), other.load(c, LANES)))
        with function.loop(0, self.size, LANES) as c:
            solution.store(c, self.zeros)
        with function.loop(0, self.n) as i:
            k = self.n - 1 - i
            row = system.at(k * wide)

            def product(c: Value, row: Array = row) -> Value:
                return row.load(c, LANES) * solution.load(c, LANES)

            sum_ = self.total(product)
            solution.store(k, (row.load(self.size) - sum_) / row.load(k))
        return determinant.value


def _abs(x: Value) -> Value:
    return maximum(x, -x)
