"""Algorithm 2: data, partitions, models, workers, a server, and the simulator."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
