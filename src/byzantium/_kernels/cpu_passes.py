"""The passes for the CPU: compiled, or in plain torch where llvmlite cannot be used.

A module is imported once, so that the warning is logged once in a process.
"""

from __future__ import annotations

import logging

from byzantium._kernels import torch_passes
from byzantium._kernels.backend import Passes

passes: Passes
try:
    from byzantium._kernels import compiled_passes

    passes = compiled_passes
except Exception as error:  # not installed, broken, or of a version that we do not know
    logging.getLogger("byzantium").warning(
        "llvmlite cannot be used (%s): rules run in plain torch, right but slower", error
    )
    passes = torch_passes
