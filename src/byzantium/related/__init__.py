"""The systems of the paper's related work: votes, histories, redundancy, clusters.

They are here to be compared with. What each promises, and what becomes of it where workers hold
different data, is in docs/understand/related.md. They are named like any other rule:
`--rule "DivideAndConquer(f=5)"`.
"""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
