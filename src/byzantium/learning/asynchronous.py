"""A simulation in simulated time, event by event: workers send when they are ready.

When the server takes a step, and how long workers take, a `Clock` says.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, ClassVar

import torch

from byzantium.core import ByzantiumError
from byzantium.learning import formulas, metrics
from byzantium.learning.checkpoint import CheckpointError
from byzantium.learning.clocks import parse_clock
from byzantium.learning.history import History
from byzantium.learning.simulation import Simulation
from byzantium.learning.state import check_generator

# The buffers are emptied by the timer at most so often between two steps of the server.
MOST_EMPTIED = 1000


class AsynchronousSimulation(Simulation):
    """A training with a server in simulated time, in one process: a round is a step of the server.

    Each worker fetches the model when it begins, computes its vector on it, and sends it when its
    time is over: then the vector goes into a buffer of the server, multiplied by the
    clock's factor of its staleness. Once enough buffers are filled, the server applies the rule to
    their means and takes a step. What arrives at the same time arrives in random order, and its
    workers begin again after the steps of this moment.

    Attackers send as often as their times allow. They act as late as possible, and know what the
    attackers of a `Simulation` know: a buffer to which one of them has sent holds, when the server
    takes its step, what the attack makes of all buffers that are honest, and nothing else.
    `own` of an attack is the mean of their own vectors in a buffer.

    Its parameters are those of `Simulation`; `Settings.clock` is the clock.

    >>> from byzantium import InnerProduct, Median
    >>> from byzantium.data import iid, load
    >>> from byzantium.learning import Settings, mlp
    >>> clock = "BASGD(buffers=11, times='pareto')"
    >>> settings = Settings(n=25, attackers=5, rounds=3, record=(), clock=clock)
    >>> data, model = load("digits"), mlp((1, 8, 8))
    >>> training = AsynchronousSimulation(settings, data, model, Median(), InnerProduct(), iid())
    >>> [sorted(record) for record in training][-1]
    ['early_heterogeneity', 'loss', 'round', 'staleness', 'time']
    """

    has: ClassVar[frozenset[str]] = frozenset({"clock"})

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        n, clock = self.settings.n, parse_clock(self.settings.clock)
        self.clock = clock
        clock.check_size(n, self.settings.attackers)
        self.generator = self.randomness.streams["clock"]
        self.paces = self._times(n) if clock.lasting else None
        self.time = 0.0
        # Of each worker: when its vector arrives, and its place among those that arrive then; at
        # which step it fetched the model; the loss on its batch, and on that of what it sent last;
        # the number by which it is dealt to a buffer.
        self.due, self.places = [0.0] * n, [0.0] * n
        self.begun = [0] * n
        self.losses, self.sent_losses = self.sent.new_zeros(n), self.sent.new_zeros(n)
        self.table = list(range(n))
        self.idle, self.fetched = set(range(n)), set[int]()
        self.queue: list[tuple[float, float, int]] = []
        self.buffers = self.gradients.rows(clock.buffer_count(n))
        self._empty()

    # -- training ----------------------------------------------------------------------------------

    def _round(self, t: int) -> dict[str, Any]:
        self._reshuffle(t)
        self._last_indices = None
        self._receive(t)
        workers = [worker for worker, count in enumerate(self.counts) if count]
        self.order = sorted(self.sizes, key=lambda b: (b in self.taken, b))
        h = len(self.order) - len(self.taken)
        honest = sum(worker < self.honest for worker in workers)
        losses = self.sent_losses[workers]
        record: dict[str, Any] = {"round": t + 1, "loss": float(losses[:honest].mean())}
        root = self._root_gradient(t)
        finite = root is None or root.vector.isfinite().all()
        if not losses[:honest].isfinite().all() or not finite:
            return self._diverged(record)
        if not self._computes_losses:
            losses = losses[:honest]
        rows, sending = self.buffers[self.order], list(range(h, len(self.order)))
        record = self._serve(rows, h, workers, sending, record, losses, root)
        self._empty()
        return record

    def _receive(self, t: int) -> None:
        """Let time pass until enough buffers are filled for step t."""
        since, emptied, enough = self.time, 0, self.clock.vectors(self.settings.n)
        patience = self.clock.patience
        while len(self.sizes) < enough:
            awaited = [one for one in self.queue[:1] if self.clock.waits or one[0] <= self.time]
            if self.idle and not awaited:
                self._begin(sorted(self.idle), t)
            due = self.queue[0][0]
            if due - since > patience:  # the timer runs out before the next vector arrives
                since, emptied = due - math.fmod(due - since, patience), emptied + 1
                if emptied > MOST_EMPTIED:
                    raise ByzantiumError(
                        f"{self.clock!r} emptied its buffers {MOST_EMPTIED} times before all of "
                        "them were filled; it needs a longer timer or fewer buffers"
                    )
                self._deal_anew()
            self.time, _, worker = heapq.heappop(self.queue)
            self._deliver(worker, t)
        self._compute_fetched(t)

    def _begin(self, workers: list[int], t: int) -> None:
        """Let idle workers fetch the model."""
        self.idle = set()
        places = torch.rand(len(workers), dtype=torch.float64, generator=self.generator).tolist()
        if self.paces is None:
            times = self._times(len(workers))
        else:
            times = [self.paces[worker] for worker in workers]
        for worker, time, place in zip(workers, times, places, strict=True):
            took = time if worker < self.honest else time / self.clock.haste
            self.due[worker], self.places[worker] = self.time + took, place
            self.begun[worker] = t
            self._expect(worker)
        self.fetched.update(workers)

    def _compute_fetched(self, t: int) -> None:
        """Let all workers that have fetched the model compute on it what they will send.

        They do so together, before the model changes or one of them sends.
        """
        workers, self.fetched = sorted(self.fetched), set()
        honest = [worker for worker in workers if worker < self.honest]
        attackers = workers[len(honest) :]
        self._compute_rows(honest, t)
        if attackers and self.attack.needs_own:
            self._compute_rows(attackers, t)
        elif attackers and self._computes_losses:
            batches, seeds = self._next_batches(attackers), self._seeds(attackers, t)
            self.losses[attackers] = self.gradients.losses(*batches, seeds)

    def _compute_rows(self, workers: list[int], t: int) -> None:
        """Bring the rows of workers, who are all honest or all attackers, up to date."""
        if not workers:
            return
        # Where they are neighbors, their rows need no copy.
        first, count = workers[0], len(workers)
        adjacent = workers[-1] - first + 1 == count
        rows = self.sent[first : first + count] if adjacent else self.sent[workers]
        self.losses[workers] = self._compute(rows, workers, t)
        if not adjacent:
            self.sent[workers] = rows

    @property
    def _computes_losses(self) -> bool:
        """Whether there are losses of attackers."""
        return self.attack.needs_own or metrics.need_own_losses(self.settings.record)

    def _times(self, count: int) -> list[float]:
        drawn: list[float] = self.clock.draw(count, self.generator).tolist()
        return drawn

    def _expect(self, worker: int) -> None:
        heapq.heappush(self.queue, (self.due[worker], self.places[worker], worker))

    def _buffer(self, worker: int) -> int:
        """The buffer to which a worker sends."""
        return self.table[worker] % len(self.buffers)

    def _deliver(self, worker: int, t: int) -> None:
        """Put what a worker has computed into its buffer."""
        if worker in self.fetched:
            self._compute_fetched(t)
        self.idle.add(worker)
        self.sent_losses[worker] = self.losses[worker]
        self.counts[worker] += 1
        self.staleness[worker] += t - self.begun[worker]
        b, attacking = self._buffer(worker), worker >= self.honest
        if attacking and b not in self.taken:
            self.taken.add(b)
            self.sizes[b] = 0
        if b in self.taken and not attacking:
            return
        self.sizes[b] = size = self.sizes.get(b, 0) + 1
        if attacking and not self.attack.needs_own:
            return
        vector = self.sent[worker] * self.clock.factor(t - self.begun[worker])
        if size == 1:
            self.buffers[b] = vector
        else:
            self.buffers[b] += (vector - self.buffers[b]) / size

    def _empty(self) -> None:
        """Empty all buffers."""
        # Of how many vectors the mean in each filled buffer is; to which attackers have sent.
        self.sizes: dict[int, int] = {}
        self.taken: set[int] = set()
        # Of each worker: how many of its vectors are in the buffers, and their staleness in all.
        self.counts = [0] * self.settings.n
        self.staleness = [0] * self.settings.n

    def _deal_anew(self) -> None:
        """Empty all buffers, and deal the workers to them: first those that have sent something."""
        drawn: list[int] = torch.randperm(self.settings.n, generator=self.generator).tolist()
        active = [bool(count) for count in self.counts]
        for number, worker in enumerate(sorted(drawn, key=lambda worker: not active[worker])):
            self.table[worker] = number
        self._empty()

    def _buffered(self, workers: list[int]) -> formulas.Buffered:
        rows = {b: row for row, b in enumerate(self.order)}
        shares = []
        for worker in workers:
            b = self._buffer(worker)
            counts = worker >= self.honest or b not in self.taken
            shares.append(self.counts[worker] / self.sizes[b] if counts else 0.0)
        return formulas.Buffered(
            self.time,
            [self.staleness[w] / self.counts[w] for w in workers if w < self.honest],
            [rows[self._buffer(worker)] for worker in workers],
            shares,
        )

    # -- state -------------------------------------------------------------------------------------

    @property
    def keeps_rows(self) -> bool:
        return True  # they have what workers are about to send

    def _state(self) -> dict[str, Any]:
        # Between rounds all buffers are empty.
        return {**super()._state(), "clock": self._clock_state()}

    def _clock_state(self) -> dict[str, Any]:
        return {
            "time": self.time,
            "generator": self.generator.get_state(),
            "paces": self.paces,
            "due": list(self.due),
            "places": list(self.places),
            "idle": [worker in self.idle for worker in range(self.settings.n)],
            "begun": list(self.begun),
            "losses": self.losses,
            "table": list(self.table),
        }

    def _state_forms(self, history: History) -> dict[str, Any]:
        return {**super()._state_forms(history), "clock": self._clock_state()}

    def _try_state(self, state: dict[str, Any]) -> None:
        super()._try_state(state)
        clock, t = state["clock"], len(state["history"]["rounds"])
        check_generator(self.generator, clock["generator"])
        busy = [due for due, idle in zip(clock["due"], clock["idle"], strict=True) if not idle]
        if not (
            0 <= clock["time"] < math.inf
            and all(clock["time"] <= due < math.inf for due in busy)
            and all(map(math.isfinite, clock["places"]))
            and all(0 <= pace < math.inf for pace in clock["paces"] or ())
            and all(0 <= begun <= t for begun in clock["begun"])
            and sorted(clock["table"]) == list(range(self.settings.n))
        ):
            raise CheckpointError("its clock is not one of this simulation")

    def _load_state(self, state: dict[str, Any]) -> None:
        super()._load_state(state)
        clock = state["clock"]
        self.time = clock["time"]
        self.generator.set_state(clock["generator"])
        self.paces = None if clock["paces"] is None else list(clock["paces"])
        self.due, self.places = list(clock["due"]), list(clock["places"])
        self.losses = clock["losses"].clone()
        self.begun, self.table = list(clock["begun"]), list(clock["table"])
        self.idle = {worker for worker, idle in enumerate(clock["idle"]) if idle}
        self.queue = []
        for worker, idle in enumerate(clock["idle"]):
            if not idle:
                self._expect(worker)
        self._empty()
