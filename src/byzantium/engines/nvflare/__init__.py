"""Federations with NVIDIA FLARE: a robust aggregator for its controllers."""

from byzantium.core import import_optional

import_optional("nvflare", "nvflare", "a federation with NVIDIA FLARE")

from nvflare.job_config import fed_job_config  # noqa: E402

from byzantium.engines.federation.rounds import Round, Standstill  # noqa: E402
from byzantium.engines.nvflare.aggregator import RobustAggregator  # noqa: E402

# An exported job takes along the source files of the classes in it, except those of packages that
# are installed on the server. Files of Byzantium there would hide the installed ones.
if "byzantium" not in fed_job_config.FL_PACKAGES:
    fed_job_config.FL_PACKAGES = [*fed_job_config.FL_PACKAGES, "byzantium"]

__all__ = ["RobustAggregator", "Round", "Standstill"]
