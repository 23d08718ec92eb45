from .subsets import DivideAndConquer as DivideAndConquer

__all__: list[str]
