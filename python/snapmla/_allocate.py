"""New arrays for results that the caller gives no array for."""

from __future__ import annotations

import sys
from typing import Any

# NumPy and CuPy have neither e4m3 nor bf16: bits.
_NUMPY = {"e4m3": "uint8", "u8": "uint8", "bf16": "uint16", "f32": "float32", "i32": "int32", "i64": "int64"}
_TORCH = {"e4m3": "float8_e4m3fn", "u8": "uint8", "bf16": "bfloat16", "f32": "float32", "i32": "int32", "i64": "int64"}


def empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """An uninitialized array of `like`'s library on its device; `dtype` is the core's name.

    NumPy and CuPy arrays hold e4m3 as uint8 and bf16 as uint16 bits.
    """
    library = type(like).__module__.partition(".")[0]
    # A subclass (torch.nn.Parameter, a NumPy memmap of another package) counts as its library's.
    for name in ("torch", "numpy", "cupy"):
        module = sys.modules.get(name)
        kind = {"torch": "Tensor"}.get(name, "ndarray")
        if module is not None and isinstance(like, getattr(module, kind)):
            library = name
            break
    if library == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, _TORCH[dtype]), device=like.device)
    if library == "numpy":
        return sys.modules["numpy"].empty(shape, dtype=_NUMPY[dtype])
    if library == "cupy":
        cupy = sys.modules["cupy"]
        with like.device:
            return cupy.empty(shape, dtype=_NUMPY[dtype])
    from snapmla._core import InvalidArgument

    raise InvalidArgument(
        f"out: expected arrays to write to (only NumPy, PyTorch and CuPy arrays are made here), got None beside arrays of {library}"
    )
