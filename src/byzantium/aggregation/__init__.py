"""Robust aggregation: tensors in, a tensor out. Knows nothing of learning."""

from byzantium.aggregation.coordinatewise import Bulyan, MeaMed, Median, TrimmedMean
from byzantium.aggregation.geometry import Geometry
from byzantium.aggregation.mixing import (
    AdaptiveClipping,
    Bucketing,
    NearestNeighborMixing,
    Resampling,
)
from byzantium.aggregation.notation import parse, parse_mixing, parse_rule
from byzantium.aggregation.pipeline import Aggregator, Mixing, Report
from byzantium.aggregation.rules import CoordinateWise, MatrixRule, Weighting
from byzantium.aggregation.weightings import (
    CenteredClipping,
    GeometricMedian,
    Krum,
    Mean,
    MinimumDiameter,
    SpectralFilter,
)

__all__ = [
    "AdaptiveClipping",
    "Aggregator",
    "Bucketing",
    "Bulyan",
    "CenteredClipping",
    "CoordinateWise",
    "GeometricMedian",
    "Geometry",
    "Krum",
    "MatrixRule",
    "MeaMed",
    "Mean",
    "Median",
    "MinimumDiameter",
    "Mixing",
    "NearestNeighborMixing",
    "Report",
    "Resampling",
    "SpectralFilter",
    "TrimmedMean",
    "Weighting",
    "parse",
    "parse_mixing",
    "parse_rule",
]
