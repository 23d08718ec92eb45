"""The passes over vectors on the CPU: `compiled`; where llvmlite cannot be used, `plain`.

A module is imported once, so that what is to be said of this is said once in a process.
"""

from __future__ import annotations

import logging
from types import ModuleType

from byzantium._kernels import torch_passes as plain

passes: ModuleType
try:
    from byzantium._kernels import compiled_passes as compiled

    passes = compiled
except Exception as error:  # not installed, broken, or of a version that we do not know
    logging.getLogger("byzantium").warning(
        "llvmlite cannot be used (%s): rules run in plain torch, right but slower", error
    )
    passes = plain
