"""Loads byzfl 0.0.11 as a contestant, without making it a dependency.

The package is installed into a folder of the bench, without its dependencies. Only the submodules
with its aggregators and its training classes are imported: their parent would import torchvision
and seaborn. They need scipy only for NumPy input, so an empty module replaces it where it is
missing.
"""

import importlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

REQUIREMENT = "byzfl==0.0.11"


class ByzflMissingError(Exception):
    """byzfl could not be installed or imported; the message is one sentence."""


def load(folder: Path) -> ModuleType:
    """The module `byzfl.aggregators`, installed into `folder` on first use."""
    package = folder / "byzfl"
    if not (package / "aggregators").is_dir():
        _install(folder)
    parent = ModuleType("byzfl")
    parent.__path__ = [str(package)]
    sys.modules["byzfl"] = parent
    try:
        with _scipy_or_empty_module():
            return importlib.import_module("byzfl.aggregators")
    except ImportError as error:
        raise ByzflMissingError(f"byzfl is omitted: it does not import ({error}).") from error


class Training:
    """Call it for one round by byzfl's own classes, as its `benchmark/train.py` calls them.

    There are n - q honest clients; one object sends the vectors of q attackers, copies of those of
    the first client. `load` must have been called before.
    """

    def __init__(
        self,
        make: Callable[[], nn.Module],
        x: Tensor,
        y: Tensor,
        *,
        n: int,
        q: int,
        batch: int,
        momentum: float = 0.9,
        rate: float = 0.01,
    ) -> None:
        framework = importlib.import_module("byzfl.fed_framework")
        framework.models.of_the_bench = make  # it finds models by their names
        common = {"model_name": "of_the_bench", "device": "cpu"}
        self.clients = []
        for worker in range(n - q):
            samples = TensorDataset(x[worker::n], y[worker::n])
            client = {
                "loss_name": "CrossEntropyLoss",
                "LabelFlipping": False,
                "nb_labels": 10,
                "momentum": momentum,
                "training_dataloader": DataLoader(samples, batch, shuffle=True, drop_last=True),
                "store_per_client_metrics": False,
                "optimizer_name": None,
                "learning_rate": None,
                "weight_decay": None,
                "milestones": None,
                "learning_rate_decay": None,
            }
            self.clients.append(framework.Client(common | client))
        self.attackers = framework.ByzantineClient({"name": "Mimic", "f": q, "parameters": {}})
        server = {
            "optimizer_name": "SGD",
            "learning_rate": rate,
            "weight_decay": 0.0,
            "milestones": [],
            "learning_rate_decay": 1.0,
            "aggregator_info": {"name": "TrMean", "parameters": {"f": q}},
            "pre_agg_list": [],
            "test_loader": DataLoader(TensorDataset(x, y)),
        }
        self.server = framework.Server(common | server)

    def __call__(self) -> None:
        state = self.server.get_dict_parameters()
        for client in self.clients:
            client.set_model_state(state)
            client.compute_gradients()
        honest = [client.get_flat_gradients_with_momentum() for client in self.clients]
        self.server.update_model_with_gradients(honest + self.attackers.apply_attack(honest))


def _install(folder: Path) -> None:
    if importlib.util.find_spec("pip"):
        command = [sys.executable, "-m", "pip", "install", "--quiet"]
    elif uv := shutil.which("uv"):
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable]
    else:
        raise ByzflMissingError("byzfl is omitted: neither pip nor uv is installed.")
    command += ["--no-deps", "--target", str(folder), REQUIREMENT]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    except (subprocess.SubprocessError, OSError) as error:
        raise ByzflMissingError(
            f"byzfl is omitted: {REQUIREMENT} could not be installed."
        ) from error


@contextmanager
def _scipy_or_empty_module() -> Iterator[None]:
    if importlib.util.find_spec("scipy"):
        yield
        return
    names = ("scipy", "scipy.spatial", "scipy.spatial.distance")
    modules = [ModuleType(name) for name in names]
    modules[0].spatial, modules[1].distance = modules[1], modules[2]  # type: ignore[attr-defined]
    sys.modules.update(zip(names, modules, strict=True))
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
