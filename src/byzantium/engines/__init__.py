"""Where the vectors of real federations are: rules hold here as they are, and none is copied."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
