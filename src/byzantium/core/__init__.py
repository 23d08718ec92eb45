"""What every room may use, and what knows nothing of any: files, and who works in a folder."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
