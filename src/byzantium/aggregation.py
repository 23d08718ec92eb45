"""The former name of `byzantium.rules` and `byzantium.vectors`."""

from byzantium.core.exports import former_package

__getattr__ = former_package(__name__, ["byzantium.rules", "byzantium.vectors"])
