"""Tables and figures of papers, as data, and ours beside the published numbers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
