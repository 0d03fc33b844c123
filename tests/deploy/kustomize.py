"""Renders Kustomize folders with the library that `kubectl apply -k` contains.

The package pykustomize has it; its Python part needs a newer Python than Debian 12 has, so it is called directly.
"""

import ctypes
from pathlib import Path

import yaml

_library = None


def _load(root):
    global _library
    if _library is None:
        (path,) = (root / ".venv/kustomize").glob("pykustomize/_lib/linux-*/libpykustomize.so")
        _library = ctypes.CDLL(str(path))
        _library.pykustomize_build.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
        _library.pykustomize_last_error.restype = ctypes.c_void_p
        _library.pykustomize_free.argtypes = [ctypes.c_void_p]
    return _library


def _take(library, pointer):
    """The text at the pointer, which is freed."""
    text = ctypes.string_at(pointer).decode("utf-8")
    library.pykustomize_free(pointer)
    return text


def render(root: Path, folder: Path):
    """The resources of `folder` as dictionaries. ValueError with Kustomize's message if it refuses the folder."""
    library = _load(root)
    result = ctypes.c_void_p()
    if library.pykustomize_build(str(folder).encode(), b"{}", ctypes.byref(result)) != 0:
        raise ValueError(_take(library, library.pykustomize_last_error()))
    return list(yaml.safe_load_all(_take(library, result)))
