"""The compiler of functions of `ir` to machine code for this processor. It imports llvmlite.

Compiling takes some hundredths of a second, so nothing is stored on disk. The result is a plain
function of C: other threads may run meanwhile, and a forked child has it, too.
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

from byzantium._kernels.ir import ADDRESS, DOUBLE, INTEGER, SIZE, Function, minimum
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
    # Where registers have 16 bytes, vectors of 32 are two of them, which costs nothing.
    return Processor(
        llvm.get_host_cpu_name(), features.flatten(), 64 if features.get("avx512f") else 32
    )


HOST = _host()
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

# The lock of llvmlite, which only one thread at a time may use. Forks wait for it: their children
# would find it locked for ever.
_compiling = llvm.ffi.lib._lock._lock
held_during_forks(_compiling)


class Kernel:
    """A compiled function of numbers, arrays and other kernels.

    Arrays are passed by their addresses, and must be contiguous.

    - `parameters`: the names of its parameters, and the type of each.
    - `address`: its address.
    - `in_pieces`: the address of the function that calls it for pieces of the columns; see
      `_in_pieces`.
    """

    def __init__(self, parameters: Mapping[str, str], address: int, in_pieces: int = 0) -> None:
        # The place of `first` and `last`, the columns to work on, among the parameters; or the end.
        self.kinds, self.place = tuple(parameters.values()), _place_of_columns(parameters)
        self.address, self.in_pieces = address, in_pieces
        self._call = ctypes.CFUNCTYPE(None, *(C_TYPES[kind] for kind in self.kinds))(address)
        self._work = ctypes.CFUNCTYPE(None, C_TYPES[ADDRESS])(in_pieces)

    def __call__(self, *arguments: Argument) -> None:
        self._call(*map(number, arguments))

    def work(self, packed: NDArray[np.int64]) -> None:
        """Take pieces of a call; see `_in_pieces`."""
        self._work(number(packed))


Argument: TypeAlias = float | NDArray[Any] | Tensor | Kernel


def number(argument: Argument) -> float:
    """An argument as a number: of arrays, tensors and kernels, the address."""
    if isinstance(argument, int):
        return argument
    if isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous
        return argument.__array_interface__["data"][0]
    if isinstance(argument, Tensor):
        assert argument.is_contiguous()
        return argument.data_ptr()
    return argument.address if isinstance(argument, Kernel) else argument


def _place_of_columns(parameters: Mapping[str, str]) -> int:
    return [*parameters, "first"].index("first")


def _in_pieces(kernel: Function, place: int) -> Function:
    """Call a kernel for pieces of the columns, until all pieces are begun; by several threads.

    - `packed`: how many pieces and how many threads have begun; how many pieces there are, of how
      many columns each, before which column; and for each argument except `first` and `last` its
      bits, and their increments from piece to piece and from thread to thread.
    """
    function, kinds = Function("in_pieces"), list(kernel.parameters.values())
    packed = function.array("packed", INTEGER)
    thread = packed.increment(1)
    count, step, end = (packed.load(k) for k in range(2, 5))
    with function.loop(0, count):
        piece = packed.increment(0)
        with function.when(piece < count):
            arguments = []
            for j, kind in enumerate(kinds[:place] + kinds[place + 2 :]):
                bits, for_piece, for_thread = (packed.load(5 + 3 * j + k) for k in range(3))
                arguments.append((bits + for_piece * piece + for_thread * thread).read_as(kind))
            first = piece * step
            arguments[place:place] = first, minimum(first + step, end)
            function.call(kernel, *arguments)
    return function


def kernel(write: Callable[..., list[Function]]) -> Callable[..., Kernel]:
    """Decorate a function that writes functions; the last is the kernel, compiled on first use."""

    @cache
    def compiled(processor: Processor, *arguments: Any) -> Kernel:
        with _compiling:
            return _compiled(write(*arguments), processor)

    @wraps(write)
    def get(*arguments: Any) -> Kernel:
        return compiled(HOST, *arguments)

    return get


def _compiled(functions: Sequence[Function], processor: Processor) -> Kernel:
    parameters, names = functions[-1].parameters, [functions[-1].name]
    if (place := _place_of_columns(parameters)) < len(parameters):
        functions = [*functions, _in_pieces(functions[-1], place)]
        names.append(functions[-1].name)
    declarations = dict.fromkeys(line for function in functions for line in function.declarations)
    module = llvm.parse_assembly("\n".join([*declarations, *map(str, functions)]))
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=processor.name, features=processor.features, opt=2
    )
    # Variables become registers; no other optimization is needed.
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options())
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    addresses = [engine.get_function_address(name) for name in names]
    engine.detach()  # never freed: a thread may still be in there while the interpreter goes down
    return Kernel(parameters, *addresses)
