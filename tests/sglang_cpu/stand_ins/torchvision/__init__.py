"""Stands in for torchvision, which SGLang imports for images and a text model never calls."""

import importlib.machinery
import sys
import types

__version__ = "0.28.0"


class _Unused:
    """Any class, function or constant of the package, as long as nobody calls it."""

    BICUBIC = BILINEAR = NEAREST = NEAREST_EXACT = LANCZOS = BOX = HAMMING = 0

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        raise RuntimeError("torchvision is not installed here")


class _Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unused


for _name in ("io", "ops", "utils", "models", "datasets", "transforms", "transforms.functional",
              "transforms.v2", "transforms.v2.functional"):  # fmt: skip
    _full = f"{__name__}.{_name}"
    _module = sys.modules[_full] = _Module(_full)
    _module.__spec__ = importlib.machinery.ModuleSpec(_full, None, is_package=True)
    _parent, _, _leaf = _full.rpartition(".")
    setattr(sys.modules[_parent], _leaf, _module)
