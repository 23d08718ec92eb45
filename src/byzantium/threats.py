"""The former name of `byzantium.attacks`."""

from byzantium.core.exports import former_package

__getattr__ = former_package(__name__, ["byzantium.attacks"])
