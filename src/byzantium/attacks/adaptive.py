"""An attack that searches, in each round, for the vectors that hurt the server's rule most.

Candidates are combinations of a few *features*: the honest vectors, their standard deviation by
coordinate, the root gradient and what the rule remembers. A candidate is therefore a short vector
of coefficients. A rule that gives weights depends on vectors only through inner products, so it is
tried on vectors of a few dozen dimensions that have the same inner products (`Space`): a trial then
costs as little for a model of millions of parameters as for a small one. Rules by coordinate are
tried on the vectors themselves, and less often.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.attacks.attack import AIMS_AT_STEPS, Aim, Attack, Scene, check_aim, harm
from byzantium.attacks.space import Array, Space
from byzantium.core import ByzantiumError, Positive

# Multiples of the honest mean, of deviations and of principal directions that are tried.
OF_MEAN = (-30.0, -10.0, -3.0, -1.0, -0.3, 0.0, 0.3, 3.0, 10.0)
OF_DEVIATION = (-3.0, -1.5, -0.5, 0.5, 1.5, 3.0)
OF_PRINCIPAL = (-10.0, -3.0, -1.0, 1.0, 3.0, 10.0)
OF_MODEL = (-3.0, -1.0, 0.3, 0.6, 1.0, 2.0, 4.0, 16.0)
# How far rows are mirrored at the mean, and how far the root gradient is turned, in radians.
MIRRORED = (1.0, 3.0)
TURNED = (0.5, 1.2, 1.5)
# So many principal directions are tried and climbed along.
PRINCIPAL = 6
# At most so many honest rows are candidates.
ROWS = 32
# Of more numbers than these, trials by coordinate cost so much that there are fewer of them.
MANY_NUMBERS = 1 << 20
FEWER = 4
# So many of the candidates that were most harmful so far are tried again in each round.
BEST = 12
# So many candidates are compared by the loss after the server's step.
COMPARED = 6
# How fast the memory of how harmful a candidate was fades.
MEMORY = 0.8
# The first step of a climb along a direction, relative to the usual distance from the mean.
FIRST_STEP = 0.3
LINE_SEARCH = (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, repr=False)
class Adaptive(Attack):
    r"""Searches in each round for the vectors that hurt the server's rule most.

    .. math:: \operatorname*{argmin}_{z} \; \langle \mathrm{rule}(x_1, \dots, x_h, z, \dots, z),
        \bar x \rangle

    The attackers know everything except what the server draws at random: the honest vectors, the
    rule with its state, the root gradient, the model. They try candidates on copies of the rule:
    honest vectors and their mirror images, multiples of the mean, of deviations by coordinate, of
    principal directions and of the model, turns of the root gradient, and what was best in the last
    round. From the best one they climb by finite differences through the rule. All attackers send
    the same vector, or two groups send different ones. A random rule is tried with several random
    numbers of the attackers' own. Vectors so long that the server would reject them are never sent:
    against the mean, which bounds no harm, they would be the best.

    - `aim`: "alignment": the smallest inner product of the result with the honest mean, so that
      the step goes uphill; "distance": the result farthest from the honest mean; "loss": the
      highest loss of honest workers after the server's step, among the most harmful candidates;
      "collapse": the largest inner product of the result with the parameters of the model, so that
      they shrink toward zero, where gradients vanish and a training stays.
    - `budget`: how many times the rule is tried in each round, at least 10. In its first round the
      attack tries all candidates.

    The attack is ours; the idea to attack a rule by optimizing through it is that of Shejwalkar,
    Houmansadr: Manipulating the Byzantine, NDSS 2021, and the fixed, parameter-free ensemble that
    of Croce, Hein: Reliable Evaluation of Adversarial Robustness, ICML 2020.

    >>> from byzantium import Mean
    >>> honest = torch.tensor([[1.0, 0.0], [1.0, 0.2], [0.8, -0.2]])
    >>> bool(Adaptive()(honest, q=1, rule=Mean()) @ honest.mean(0) < -10)
    True
    """

    aim: Aim = "alignment"
    budget: Positive = 80
    needs_model: ClassVar[bool] = True

    @property
    def needs_server(self) -> bool:  # type: ignore[override]
        return self.aim in AIMS_AT_STEPS

    def check_parameters(self) -> None:
        if self.budget < 10:
            raise ByzantiumError(f"{self!r} needs a budget of at least 10 trials")

    def vectors(self, scene: Scene) -> Tensor:
        if scene.rule is None:
            raise ByzantiumError(f"{self!r} needs the server's rule to search against, rule=...")
        check_aim(self, self.aim, scene)
        # Against the mean harm has no bound: candidates grow to the longest that it admits, and
        # those beyond may overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            search = _Search(self, Space(scene), self._memory)
            best = search.best()
        object.__setattr__(self, "_remembered", search.memory(best))
        return search.space.full(best)

    @property
    def _memory(self) -> dict[str, Tensor]:
        """The harm that each candidate did, and the last best coefficients."""
        return self.__dict__.get("_remembered", {})

    def state_dict(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self._memory.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if unknown := sorted(set(state) - {"harm", "last"}):
            raise ByzantiumError(
                f"{self!r} has only the state 'harm' and 'last', got {', '.join(unknown)}"
            )
        copies = {name: value.clone() for name, value in state.items()}
        object.__setattr__(self, "_remembered", copies)


class _Search:
    """The search of one round.

    - `attack`: the attack, for its aim and budget.
    - `space`: the features and the rule.
    - `remembered`: what the last round left: the harm of each candidate, and the best coefficients.
    """

    def __init__(self, attack: Adaptive, space: Space, remembered: Mapping[str, Tensor]) -> None:
        self.attack, self.space = attack, space
        cheap = space.kind != "never" or space.features.numel() <= MANY_NUMBERS
        self.budget = max(10, attack.budget // (len(space.draws) * (1 if cheap else FEWER)))
        h, k = space.h, len(space.features)
        self.mean = np.zeros(k)
        self.mean[:h] = 1 / h
        self.deviation = np.eye(k)[h]
        self.principal = self._principal()
        # The model, as long as honest vectors usually are away from their mean.
        spread = np.trace(space.gram[:h, :h]) / h - self._product(self.mean, self.mean)
        self.model = np.zeros(k)
        if "model" in space.places:
            place = space.places["model"]
            self.model[place] = np.sqrt(max(spread, 0) / (space.gram[place, place] or 1))
        self.candidates = np.array(list(self._candidates()))
        harm = remembered.get("harm", torch.empty(0)).numpy()
        known = harm.shape == (len(self.candidates),)
        self.harm_so_far = harm if known else np.full(len(self.candidates), np.inf)
        last = remembered.get("last", torch.empty(0)).numpy()
        self.last = last if last.shape == (k,) else None
        # In the first round all candidates are tried, beyond the budget.
        self.first = not known and cheap
        self.limit = self.budget + (len(self.candidates) if self.first else 0)
        self.trials: list[tuple[float, Array]] = []

    # -- candidates ----------------------------------------------------------------------------

    def _principal(self) -> Array:
        """Coefficients of the principal directions of the honest rows, times their deviation.

        With K the inner products about the mean, K = U diag(l) U^T, the direction with the
        coefficients U_j about the mean has the length sqrt(l_j); the deviation along it is
        sqrt(l_j / h).
        """
        h, k = self.space.h, len(self.mean)
        center = np.eye(h) - 1 / h
        _, vectors = np.linalg.eigh(center @ self.space.gram[:h, :h] @ center)
        directions = np.zeros((min(PRINCIPAL, h), k))
        top = vectors[:, ::-1][:, : len(directions)]
        directions[:, :h] = (center @ top).T / np.sqrt(h)
        return directions

    def _candidates(self) -> Iterator[Array]:
        h, mean, rows = self.space.h, self.mean, np.eye(len(self.mean))
        for multiple in OF_MEAN:
            yield multiple * mean
        for multiple in OF_DEVIATION:
            yield mean + multiple * self.deviation
        for multiple in OF_MODEL if "model" in self.space.places else ():
            yield mean + multiple * self.model
        for direction in self.principal:
            for multiple in OF_PRINCIPAL:
                yield mean + multiple * direction
        for i in np.linspace(0, h - 1, min(h, ROWS)).astype(int):
            yield rows[i]
            for multiple in MIRRORED:
                yield mean - multiple * (rows[i] - mean)
        if "root" in self.space.places:
            root = rows[self.space.places["root"]]
            length = self.space.length(root)
            yield from (root, -root, 3 * root)
            for direction in (-mean, *self.principal[:3], *-self.principal[:3]):
                across = direction - root * self._product(direction, root) / (length**2 or 1)
                across = across * length / (self.space.length(across) or 1)
                for angle in TURNED:
                    yield np.cos(angle) * root + np.sin(angle) * across

    def _product(self, a: Array, b: Array) -> float:
        return float(a @ self.space.gram @ b)

    # -- the search ----------------------------------------------------------------------------

    def best(self) -> Array:
        """The most harmful coefficients, (k,), or (q, k) where the attackers differ."""
        chosen = self._chosen()
        harms = self._try_all(self.candidates[chosen])
        fresh = np.isinf(self.harm_so_far[chosen])
        faded = MEMORY * np.where(fresh, 0, self.harm_so_far[chosen])
        self.harm_so_far[chosen] = np.where(fresh, harms, faded + (1 - MEMORY) * np.array(harms))
        if self.last is not None:
            self._try_all([self.last])
        self._try_teams()
        self._climb()
        if self.attack.aim != "loss":
            return max(self.trials, key=lambda trial: trial[0])[1]
        return max(self._most_harmful(COMPARED), key=self._loss)

    def _chosen(self) -> NDArray[np.int64]:
        """The candidates to try: in the first round all, later the best so far and some others."""
        if self.first:
            return np.arange(len(self.candidates))
        order = (-self.harm_so_far).argsort(kind="stable")
        rng = np.random.default_rng(self.space.seed)
        others = rng.permutation(order[BEST:])[: max(0, self.budget // 3 - BEST)]
        return np.concatenate([order[:BEST], others])

    def _try_all(self, candidates: Sequence[Array] | Array) -> list[float]:
        """The harm of each candidate; minus infinity if the server would reject it."""
        admitted = [self.space.admits(coefficients) for coefficients in candidates]
        results = iter(self.space.results(list(compress(candidates, admitted))))
        mean, model = self.space.mean, self.space.point("model")
        values = []
        for admits in admitted:
            value = -np.inf
            if admits:
                harms = [harm(self.attack.aim, result, mean, model) for result in next(results)]
                value = sum(harms) / len(harms)
            values.append(value if np.isfinite(value) else -np.inf)
        self.trials += zip(values, candidates, strict=True)
        return values

    def _most_harmful(self, count: int) -> list[Array]:
        ordered = sorted(self.trials, key=lambda trial: trial[0], reverse=True)
        return [coefficients for _, coefficients in ordered[:count]]

    def _try_teams(self) -> None:
        """Half of the attackers send the best candidate so far, the others another good one."""
        q = self.space.scene.q
        if q < 2:
            return
        first, *others = self._most_harmful(3)
        odd = np.arange(q)[:, None] % 2
        self._try_all([np.where(odd, other, first) for other in others])

    def _climb(self) -> None:
        """Climb from the best single candidate by finite differences through the rule."""
        singles = [trial for trial in self.trials if trial[1].ndim == 1]
        harm, place = max(singles, key=lambda trial: trial[0])
        directions = self._directions()
        scale = max(self.space.length(place - self.mean), self.space.length(self.principal[0]))
        step = FIRST_STEP * scale
        while len(self.trials) + len(directions) + len(LINE_SEARCH) <= self.limit and step > 0:
            slopes = np.array(self._try_all(place + step * directions)) - harm
            slopes = np.nan_to_num(slopes, neginf=0.0)
            uphill = slopes @ directions
            length = self.space.length(uphill)
            if not length > 0:
                step /= 4
                continue
            self._try_all([place + factor * step / length * uphill for factor in LINE_SEARCH])
            recent = self.trials[-len(directions) - len(LINE_SEARCH) :]
            better, where = max(recent, key=lambda trial: trial[0])
            if better > harm:
                harm, place = better, where
            else:
                step /= 4

    def _directions(self) -> Array:
        """Directions of length one to climb along."""
        along = [-self.mean, self.deviation, *self.principal]
        along += [np.eye(len(self.mean))[place] for place in self.space.places.values()]
        lengths = [self.space.length(each) for each in along]
        return np.array(
            [each / size for each, size in zip(along, lengths, strict=True) if size > 0]
        )

    def _loss(self, coefficients: Array) -> float:
        """The loss of honest workers after the server's step."""
        step_loss = self.space.scene.step_loss
        assert step_loss is not None
        return step_loss(self.space.full_result(coefficients))

    def memory(self, best: Array) -> dict[str, Tensor]:
        """What the next round is to know."""
        last = best if best.ndim == 1 else best[0]
        return {"harm": torch.from_numpy(self.harm_so_far), "last": torch.from_numpy(last.copy())}
