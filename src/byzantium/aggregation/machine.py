"""Functions of `emit` as machine code for the processor at hand. Importing this imports llvmlite.

Compiling takes some hundredths of a second, so nothing is kept on disk. What comes of it is a plain
function of C: while it runs, so may other threads, and a forked child has it, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from typing import Any, NamedTuple, TypeAlias

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from byzantium.aggregation.emit import ADDRESS, DOUBLE, INTEGER, SIZE, Function
from byzantium.core import held_during_forks

C_TYPES = {ADDRESS: ctypes.c_void_p, DOUBLE: ctypes.c_double, INTEGER: ctypes.c_int64}


class Processor(NamedTuple):
    name: str
    features: str
    vector: int  # bytes of a register

    def lanes(self, kind: str) -> int:
        return self.vector // SIZE[kind]


def _host() -> Processor:
    features = llvm.get_host_cpu_features()
    # Where registers have 16 bytes, vectors of 32 are two of them, and no harm is done.
    return Processor(
        llvm.get_host_cpu_name(), features.flatten(), 64 if features.get("avx512f") else 32
    )


HOST = _host()
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

# The lock behind which llvmlite serves one thread at a time, ours and others. Forks wait for it:
# their children would find it taken for ever.
_compiling = llvm.ffi.lib._lock._lock
held_during_forks(_compiling)


class Kernel:
    """A compiled function of numbers, arrays and other kernels; `address` is where it is.

    Arrays are given by the addresses of what they hold, which must lie without gaps.

    - `before`, `after`: the kinds of what it takes before and after `first` and `last`.
    """

    def __init__(self, address: int, given: Mapping[str, str]) -> None:
        kinds, place = tuple(given.values()), [*given, "first"].index("first")
        self.address, self.before, self.after = address, kinds[:place], kinds[place + 2 :]
        self._call = ctypes.CFUNCTYPE(None, *(C_TYPES[kind] for kind in kinds))(address)

    def __call__(self, *arguments: Argument) -> None:
        self._call(*map(number, arguments))


Argument: TypeAlias = float | NDArray[Any] | Tensor | Kernel


def number(argument: Argument) -> float:
    """What a kernel is really given."""
    if isinstance(argument, int):
        return argument
    if isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous
        return argument.__array_interface__["data"][0]
    if isinstance(argument, Tensor):
        assert argument.is_contiguous()
        return argument.data_ptr()
    return argument.address if isinstance(argument, Kernel) else argument


def kernel(write: Callable[..., list[Function]]) -> Callable[..., Kernel]:
    """Decorates what writes functions. The last of them is the kernel, compiled on first use."""

    @cache
    def compiled(processor: Processor, *arguments: Any) -> Kernel:
        with _compiling:
            return _compiled(write(*arguments), processor)

    @wraps(write)
    def get(*arguments: Any) -> Kernel:
        return compiled(HOST, *arguments)

    return get


def _compiled(functions: Sequence[Function], processor: Processor) -> Kernel:
    declarations = dict.fromkeys(line for function in functions for line in function.declarations)
    module = llvm.parse_assembly("\n".join([*declarations, *map(str, functions)]))
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=processor.name, features=processor.features, opt=2
    )
    # Variables become registers; all else is written as it should be.
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options())
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    address = engine.get_function_address(functions[-1].name)
    engine.detach()  # never freed: a thread may still be in there while the interpreter goes down
    return Kernel(address, functions[-1].given)
