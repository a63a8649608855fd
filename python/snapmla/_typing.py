"""Types of the public signatures."""

from __future__ import annotations

from typing import Any, Literal, Protocol, Union


class Array(Protocol):
    """An array of any library with DLPack: NumPy, PyTorch, CuPy, JAX."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


# A cudaStream_t as an integer, or an object with __cuda_stream__ (cuda.core), cuda_stream (PyTorch) or
# ptr (CuPy). None is the current stream of the array's library.
Stream = Union[int, Any, None]
ScaleMode = Literal["exact", "power_of_two"]
FloatDType = Literal["f32", "bf16"]
