"""Parameters of models in FLARE as NumPy arrays, and back.

A site chooses what its result holds, after FLARE has decoded it: so whatever is wrong with it is an
error about one site, and its sizes are compared with those of the model before anything is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvflare.app_common.abstract.fl_model import ParamsType

from byzantium.core import ByzantiumError, type_name
from byzantium.engines.federation.replies import (
    UnusableReply,
    any_error_is_unusable,
    printable,
)
from byzantium.engines.federation.vectors import Arrays

PLAIN = (np.ndarray, np.generic, torch.Tensor, float, int, bool)


def model_of(params: Any) -> Arrays:
    """The model of the server, as arrays by name; raises an error if a rule cannot aggregate it."""
    if not isinstance(params, Mapping) or not params:
        raise ByzantiumError(
            "RobustAggregator needs the model of the server, a dict of arrays; give the recipe "
            f"a model, or the controller a persistor (its model is {type_name(params)})"
        )
    model = {}
    for key, value in params.items():
        try:
            model[key] = _array(value)
        except Exception as error:
            raise ByzantiumError(
                f"the entry {printable(key)!r} of the model is no array that a rule can "
                f"aggregate: {type_name(value)}"
            ) from error
    return model


def changed_params(params: Any, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays as the parameters of a model: tensors of its dtypes where it has tensors."""
    result: dict[str, Any] = {key: np.array(array) for key, array in arrays.items()}
    for key, array in result.items():
        if isinstance(params[key], torch.Tensor):
            result[key] = torch.from_numpy(array).to(params[key].dtype)
    return result


@any_error_is_unusable()
def row_of(params: Any, model: Arrays) -> Arrays:
    """The arrays of a result, with shapes and dtypes of the model; it may have some of its names.

    Floating-point numbers of another precision are converted: sites that compute with NumPy turn
    float32 into float64.
    """
    if not isinstance(params, Mapping):
        raise UnusableReply(f"holds {type_name(params)} instead of arrays by name")
    row = {}
    for key, value in params.items():
        if key not in model:
            raise UnusableReply(f"has an entry {printable(key)!r} that the model lacks")
        row[key] = _like(key, value, model[key])
    if not row:
        raise UnusableReply("holds no arrays")
    return {key: row[key] for key in model if key in row}


def _like(key: str, value: Any, model: NDArray[Any]) -> NDArray[Any]:
    shape = getattr(value, "shape", ())
    if callable(getattr(value, "materialize", None)):  # FLARE has left it on the disk
        value = value.materialize()
        shape = value.shape
    if not isinstance(value, PLAIN):
        raise UnusableReply(f"holds {type_name(value)} instead of an array at {printable(key)!r}")
    if tuple(shape) != model.shape:
        sizes = printable(tuple(shape))
        raise UnusableReply(f"has the shape {sizes} instead of {model.shape} at {printable(key)!r}")
    array = _array(value)
    if array.dtype != model.dtype and not array.dtype.kind == model.dtype.kind == "f":
        raise UnusableReply(
            f"has the dtype {array.dtype} instead of {model.dtype} at {printable(key)!r}"
        )
    with np.errstate(over="ignore"):  # infinity is rejected later
        return array.astype(model.dtype, copy=False)


def _array(value: Any) -> NDArray[Any]:
    """A value as an array of numbers, without a copy where possible; bfloat16 becomes float32."""
    if not isinstance(value, PLAIN):
        raise TypeError
    if isinstance(value, torch.Tensor):
        value = value.detach().to("cpu")
        if value.dtype == torch.bfloat16:
            value = value.to(torch.float32)
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise TypeError
    return array


def converted(row: Arrays, source: ParamsType, target: ParamsType, model: Arrays) -> Arrays:
    """A row of one type of parameters as one of another: whole models, or changes of the model."""
    if source == target:
        return row
    change = np.add if target == ParamsType.FULL else np.subtract
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is rejected later
        return {
            key: array if array.dtype.kind == "b" else change(array, model[key], dtype=array.dtype)
            for key, array in row.items()
        }


def base_of(kind: ParamsType, model: Arrays) -> Arrays:
    """What rows of a type of parameters change: the model, or zeros."""
    if kind == ParamsType.FULL:
        return model
    return {key: np.zeros_like(array) for key, array in model.items()}
