"""Calls of a library's operators whose arguments are filled in once, and patched after that.

Filling a struct of descriptors costs more than the call itself. So a frame keeps one, and a call
with tensors of the shapes, strides, dtypes and devices of an earlier one only writes addresses and
the stream into it.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._C._dynamo.guards import TensorGuards

from vllm_adapter.c_abi import abi
from vllm_adapter.c_abi.library import Library
from vllm_adapter.contract.operators import FactValue
from vllm_adapter.engine.runtime.c_library.streams import CurrentStreams
from vllm_adapter.errors import DeviceError, UnsupportedCase

FRAMES: Final = 16
"""Frames that a call keeps for one key in one thread: shapes beyond it are filled in again."""
Key = tuple[FactValue, ...]
Tensors = Sequence[torch.Tensor]

_NUMBERS: Final = {getattr(torch, name): number for name, number in abi.DTYPES.items()}
_WORD: Final = 8
_TENSOR: Final = struct.Struct(f"@Piiii{2 * abi.MAX_DIMS}q")
"""va_tensor. Packing it takes a third of the time of setting the fields of a ctypes structure."""


def same_as(tensors: Tensors) -> Callable[..., bool]:
    """Whether as many tensors have the shapes, strides, dtypes and devices of these.

    One tensor that is given twice never does. It keeps no reference to them. Compared in C++:
    reading so much of each tensor from Python takes four times as long.
    """
    # upstream: pytorch@2.13 torch/csrc/dynamo/guards.cpp:TensorGuards_check
    return TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(t.shape) for t in tensors],  # type: ignore[misc] # torch's stub
        dynamic_dims_strides=[list(t.stride()) for t in tensors],  # type: ignore[misc] # as above
    ).check


class Frame:
    """The arguments of one call, all but its addresses and stream."""

    __slots__ = ("_holder", "_memory", "address", "device", "matches", "words")

    def __init__(self, kind: type[ctypes.Structure], inputs: Tensors) -> None:
        size = ctypes.sizeof(kind)
        self._memory = (ctypes.c_uint64 * (size // _WORD))()
        self._holder: Any = kind.from_buffer(self._memory)
        self._holder.size = size
        self.words = memoryview(self._memory).cast("B").cast("Q")
        self.address = ctypes.addressof(self._memory)
        self.device = inputs[0].get_device()
        self.matches = same_as(inputs)

    def set_scalar(self, field: str, value: FactValue) -> None:
        """Writes one of the struct's scalars."""
        setattr(self._holder, field, value)

    def describe(self, word: int, tensor: torch.Tensor, where: str) -> None:
        """Writes everything of a tensor but its address. `where` names it in errors.

        Raises:
            UnsupportedCase: the ABI has no such dtype, or not so many dimensions.
            DeviceError: it is on another device than the first input.
        """
        number, dims = _NUMBERS.get(tensor.dtype), tensor.dim()
        if number is None or dims > abi.MAX_DIMS:
            raise UnsupportedCase(
                f"{where} is {tensor.dtype} with {dims} dimensions",
                hint=f"the C ABI takes {', '.join(abi.DTYPES)} with at most {abi.MAX_DIMS} "
                "dimensions",
            )
        if tensor.is_cpu or tensor.get_device() != self.device:
            first = "the host" if self.device < 0 else f"device {self.device}"
            raise DeviceError(
                f"{where} is on {tensor.device}, and the first argument on {first}",
                hint="move all arguments of an operator to one device of the library",
            )
        pad = (0,) * (abi.MAX_DIMS - dims)
        extents = *tensor.shape, *pad, *tensor.stride(), *pad
        _TENSOR.pack_into(self._memory, word * _WORD, 0, self.device, number, dims, 0, *extents)

    def leave_out(self, word: int) -> None:
        """Writes that a tensor is not given."""
        zeros = (0,) * (2 * abi.MAX_DIMS)
        _TENSOR.pack_into(self._memory, word * _WORD, 0, 0, 0, -1, 0, *zeros)


class PreparedCall:
    """One operator of a library, for one set of tensors that are given. Any thread may call it.

    `outputs` and `inputs` name tensors of the struct, `absent` those that are "none"; `fields`
    are its scalars, in the order in which a key begins.
    """

    def __init__(
        self,
        library: Library,
        streams: CurrentStreams,
        name: str,
        *,
        outputs: str = "",
        inputs: str,
        absent: str = "",
        fields: str = "",
    ) -> None:
        self._library = library
        self._stream_of = streams.handle
        self._name = name
        self._function = library.functions[name]
        self._kind = abi.ARGUMENTS[name]
        self._outputs, self._inputs = outputs.split(), inputs.split()
        self._absent, self._fields = absent.split(), fields.split()
        self._stream_word = _word(self._kind, "stream")
        self._words = [_word(self._kind, n) for n in (*self._outputs, *self._inputs)]
        self._local = _ThreadFrames()

    def __call__(self, key: Key, outputs: Tensors, inputs: Tensors) -> None:
        """Queues the work on the current stream of the tensors' device.

        `key` holds the scalars, and whatever else the shapes of the outputs follow from besides
        the inputs. Outputs are new and contiguous: they are not compared.

        Raises:
            UnsupportedCase: the library, or the ABI, has nothing for these arguments.
            DeviceError: the call failed, or the tensors are not all on one device.
        """
        frame = self.frame(key, outputs, inputs)
        words = frame.words
        for word, tensor in zip(self._words, (*outputs, *inputs)):  # noqa: B905 # 0.2 us
            words[word] = tensor.data_ptr()
        self.send(frame)

    def frame(self, key: Key, outputs: Tensors, inputs: Tensors) -> Frame:
        """This thread's frame for such arguments. Its addresses are of an earlier call."""
        frames = self._local.frames.get(key)
        if frames is None:
            frames = self._local.frames[key] = []
        for frame in frames:
            if frame.matches(*inputs):
                return frame
        made = self.new_frame(key, outputs, inputs)
        if len(set(map(id, inputs))) == len(inputs):  # else it would never match
            frames.insert(0, made)
            del frames[FRAMES:]
        return made

    def new_frame(self, key: Key, outputs: Tensors, inputs: Tensors) -> Frame:
        """A frame that no other call writes into."""
        frame = Frame(self._kind, inputs)
        for field, value in zip(self._fields, key, strict=False):
            frame.set_scalar(field, value)
        names = (*self._outputs, *self._inputs)
        for name, word, tensor in zip(names, self._words, (*outputs, *inputs), strict=True):
            frame.describe(word, tensor, f"{self._library.path.name}: {self._name}: {name}")
        for name in self._absent:
            frame.leave_out(self.word(name))
        return frame

    def send(self, frame: Frame) -> None:
        """Calls the library with a frame whose addresses are set. Raises as a call does."""
        if self._library.is_forked:
            raise self._library.error(abi.FORKED, self._name)
        frame.words[self._stream_word] = self._stream_of(frame.device)
        status = self._function(frame.address)
        if status:
            raise self._library.error(status, self._name)

    def word(self, tensor: str) -> int:
        """Where a frame's words hold the address of a tensor."""
        return _word(self._kind, tensor)


class _ThreadFrames(threading.local):
    """Frames by key. A thread has its own: the lock of the interpreter is open during a call."""

    def __init__(self) -> None:
        self.frames: dict[Key, list[Frame]] = {}


def _word(kind: type[ctypes.Structure], field: str) -> int:
    offset: int = getattr(kind, field).offset
    return offset // _WORD
