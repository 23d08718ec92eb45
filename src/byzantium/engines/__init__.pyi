from . import distributed as distributed

__all__: list[str]
