"""A GPU that is pretended, for machines without one: tensors stay on the CPU, and each knows where it would be.

It finds what a machine without a GPU cannot: two tensors of one operation on different devices, a tensor of the GPU
that NumPy is given, a generator of the CPU that draws there. It says nothing about numbers, kernels or speed.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter

GPU, CPU = torch.device("cuda"), torch.device("cpu")
_COPY_PARAMETER = Parameter.__deepcopy__
_READS = (
    *(Tensor.item, Tensor.tolist, Tensor.__len__, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.size),
    *(Tensor.dim, Tensor.backward, Tensor.requires_grad_, Tensor.__repr__, Tensor.__format__, Tensor.__hash__),
)
_INTO = ("copy_", "_has_compatible_shallow_copy_type")  # the first tensor may be on another device


class DeviceError(RuntimeError):
    """What a real GPU would have refused."""


class PretendedGpu(TorchFunctionMode):
    """While this is open, `torch.device("cuda")` can be asked for. Of the thread that opened it only."""

    def __enter__(self) -> "PretendedGpu":
        Parameter.__deepcopy__ = _copy_parameter  # no function that a mode is told of
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        Parameter.__deepcopy__ = _COPY_PARAMETER
        super().__exit__(*error)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):
            return _access(func, name, args)
        if func is Tensor.to:
            return _move(*args, **kwargs)
        if func is Tensor.cpu:
            return _place(args[0], on_gpu=False)
        if func in (Tensor.numpy, Tensor.__array__) and is_on_gpu(args[0]):
            raise DeviceError("a tensor of the GPU cannot become an array: .cpu() first")
        if func in _READS or name == "_parse_to":
            return func(*args, **kwargs)
        tensors = [each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)]
        asked = kwargs.get("device")
        if asked is None:
            on_gpu = _find_device(name, args, tensors)
        else:
            on_gpu = torch.device(asked).type == "cuda"
            if on_gpu:
                kwargs["device"] = CPU
                if kwargs.get("generator") is not None:
                    raise DeviceError(f"{name}: a generator of the CPU draws no tensor of the GPU")
        found = func(*args, **kwargs)
        for each in tree_iter(found):
            if isinstance(each, Tensor) and not any(each is one for one in tensors):
                each._on_gpu = on_gpu
        return found


def _copy_parameter(parameter: Parameter, memo: dict[int, Any]) -> Any:
    copied = _COPY_PARAMETER(parameter, memo)
    copied._on_gpu = is_on_gpu(parameter)
    return copied


def is_on_gpu(tensor: Tensor) -> bool:
    return getattr(tensor, "_on_gpu", False)


def _access(func: Callable[..., Any], name: str, args: tuple[Any, ...]) -> Any:
    """An attribute of a tensor, read or set."""
    attribute, tensor = getattr(func, "__self__").__name__, args[0]  # noqa: B009 - a method-wrapper, to mypy a function
    if name == "__set__":
        func(*args)
        if attribute == "data":
            tensor._on_gpu = is_on_gpu(args[1])
        return None
    if attribute == "device" and is_on_gpu(tensor):
        return GPU
    if attribute == "is_cuda":
        return is_on_gpu(tensor)
    found = func(*args[:2])
    if isinstance(found, Tensor):
        found._on_gpu = is_on_gpu(tensor)
    return found


def _find_device(name: str, args: tuple[Any, ...], tensors: list[Tensor]) -> bool:
    """Whether what an operation gives is on the GPU."""
    on_gpu = [each for each in tensors if is_on_gpu(each)]
    others = [each for each in tensors if not is_on_gpu(each) and each.ndim]
    if name in _INTO:
        return is_on_gpu(args[0])
    if name == "__getitem__" and is_on_gpu(args[0]):
        return True  # rows may be named by numbers on the CPU
    if name == "__setitem__" and is_on_gpu(args[0]):
        others = [args[2]] if isinstance(args[2], Tensor) and args[2].ndim and not is_on_gpu(args[2]) else []
    if on_gpu and others:
        shapes = [tuple(each.shape) for each in (on_gpu[0], others[0])]
        raise DeviceError(f"{name}: a tensor of {shapes[0]} is on the GPU, one of {shapes[1]} on the CPU")
    return bool(on_gpu)


def _move(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    device, dtype, _, memory_format = torch._C._nn._parse_to(
        *(each for each in args if not isinstance(each, Tensor)),
        **{name: value for name, value in kwargs.items() if name != "copy"},
    )
    for other in args:
        if isinstance(other, Tensor):
            device, dtype = GPU if is_on_gpu(other) else CPU, other.dtype
    how = {"dtype": dtype, "memory_format": memory_format}
    if device is not None and device.type == "meta":
        how["device"] = device
    with torch._C.DisableTorchFunction():
        moved = tensor.to(**{name: value for name, value in how.items() if value is not None})
    if moved is not tensor:
        moved._on_gpu = is_on_gpu(tensor)
    return moved if device is None else _place(moved, on_gpu=device.type == "cuda")


def _place(tensor: Tensor, *, on_gpu: bool) -> Tensor:
    """The tensor itself where it is there, else a copy."""
    if is_on_gpu(tensor) == on_gpu:
        return tensor
    with torch._C.DisableTorchFunction():
        copy = tensor.clone()
    copy._on_gpu = on_gpu
    return copy
