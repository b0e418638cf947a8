"""The device, opened in this process, and what is asked of it: binding, calling, reading.

What is made here (bindings, calls, functions, results) is kept under numbers for whoever asks.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import torch

from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.engine.device import OpenDevice, open_record
from vllm_adapter.engine.device_process import sent
from vllm_adapter.engine.device_process.wire import copied
from vllm_adapter.engine.ops.bind import Binding, bind
from vllm_adapter.engine.ops.catalog import SPECS
from vllm_adapter.engine.ops.providers import load
from vllm_adapter.engine.ops.spec import OpCase
from vllm_adapter.engine.ops.step import Step
from vllm_adapter.engine.runtime import RuntimeAdapter
from vllm_adapter.settings import PREFIX, AdapterFilter, Fallback, Settings

Fn = Callable[..., Any]
UNCOUNTED: Final = 1 << 62
"""Live allocations of a runtime that cannot count them: more than any."""


@dataclass
class PlacedCall:
    """The arguments of one call on the device, and the tensors whose views they are."""

    bases: list[torch.Tensor]
    arguments: list[Any]
    mutates: tuple[int, ...]
    given: list[Any]
    """The arguments before the load and step moments."""
    held: list[torch.Tensor]
    """Copies of those that are written in place, as they were given."""
    ran: bool = False

    def restore(self) -> None:
        """Has what was written in place as it was given."""
        if self.ran:
            for position, before in zip(self.mutates, self.held, strict=True):
                self.arguments[position].copy_(before)
        self.ran = True

    def written(self) -> list[torch.Tensor]:
        """The arguments that are written in place."""
        return [self.arguments[position] for position in self.mutates]


class HeldDevice:
    """One device. Its methods `do_NAME` are commands, of plain data (see `wire`)."""

    def __init__(self, open_it: Callable[[], OpenDevice], adapter: str) -> None:
        self._open, self._adapter = open_it, adapter
        self._kept: dict[int, Any] = {}
        self._numbers = itertools.count(1)

    @classmethod
    def of(
        cls,
        record: Mapping[str, Any],
        index: int,
        opener: str | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> HeldDevice:
        """The device of a probed adapter; `opener` is a function "module:name" that opens it."""
        found = AdapterRecord.from_json(record)
        if opener is None:
            return cls.of_record(found, index)
        module, _, name = opener.partition(":")
        open_it = getattr(importlib.import_module(module), name)
        return cls(lambda: open_it(**(given or {})), found.name)

    @classmethod
    def of_record(cls, record: AdapterRecord, index: int) -> HeldDevice:
        """As `of`, for a record of this process."""

        def opened() -> OpenDevice:
            settings = replace(Settings.from_environ(), adapters=_alone(record.name))
            return open_record(record, index, settings)

        return cls(opened, record.name)

    @cached_property
    def opened(self) -> OpenDevice:
        """The device, its runtime and operators; opened at the first use."""
        return self._open()

    @property
    def settings(self) -> Settings:
        """Policy `error`, and no other adapter is asked."""
        alone = _alone(self._adapter)
        return Settings(fallback=Fallback.ERROR, adapter=self._adapter, adapters=alone)

    @property
    def runtime(self) -> RuntimeAdapter:
        """The device's runtime."""
        return self.opened.runtime

    @property
    def device(self) -> torch.device:
        """The torch device."""
        return self.opened.device

    @property
    def index(self) -> int:
        """The device's index."""
        return self.opened.record.index

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device, of its own memory also where the device is the host.

        tensor: [...].
        """
        copied = tensor.to(self.device)
        return copied.clone() if copied.data_ptr() == tensor.data_ptr() else copied

    def bind(self, op: str, facts: Mapping[str, Any], owner: object = None) -> Binding:
        """Binds a case on the device under policy `error`; `owner` and errors as `ops.bind`."""
        return bind(OpCase.of(op, str(self.device), facts), self.settings, owner)

    def step(self, given: Mapping[str, Any]) -> Step:
        """A step whose tensors are on the device, from one on the host."""
        there: dict[str, Any] = {
            name: value.to(self.device) if isinstance(value, torch.Tensor) else value
            for name, value in given.items()
        }
        return Step(**there)

    def keep(self, found: Any) -> int:
        """A number for something of this process."""
        number = next(self._numbers)
        self._kept[number] = found
        return number

    def kept(self, number: int) -> Any:
        """What has that number."""
        return self._kept[number]

    def synchronize(self) -> None:
        """Waits for the device."""
        self.runtime.synchronize_stream(self.index)

    # What can be asked: `do_NAME` for the command NAME, of and to plain data.

    def do_open(self) -> dict[str, str]:
        """Opens the device."""
        return {"runtime": type(self.runtime).__name__, "device": str(self.device)}

    def do_bind(self, op: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Binds a case: the number of what runs it, and the names of the winners."""
        binding = self.bind(op, facts)
        return {"number": self.keep(binding), "providers": list(binding.providers)}

    def do_function(self, kind: str, name: str) -> int:
        """A function: a `packet` of torch's, or a `kernel` of the adapter's, "module:name"."""
        if kind == "packet":
            _ = self.opened  # puts the adapter in use, which the default overload asks
            return self.keep(getattr(torch.ops.vllm_adapter, name))
        return self.keep(load(name, self._adapter))

    def do_place(
        self, op: str, bases: Sequence[torch.Tensor], arguments: Sequence[Any]
    ) -> dict[str, Any]:
        """Arguments on the device: values, or views (base, sizes, strides, offset) of `bases`.

        Gives the call's number, the device as its tensors name it, and of each base where its
        memory begins and ends.

        bases: one dimension each, the whole memory behind the views.
        """
        there = [base.to(self.device) for base in bases]  # received memory is nobody else's
        made = [
            there[each["base"]].as_strided(each["size"], each["stride"], each["offset"])
            if isinstance(each, dict)
            else each
            for each in arguments
        ]
        mutates = SPECS[op].mutates
        held = [made[position].clone() for position in mutates]
        call = PlacedCall(there, made, mutates, list(made), held)
        where = there[0].device if there else self.device
        memory = [[base.data_ptr(), base.data_ptr() + base.nbytes] for base in there]
        return {"number": self.keep(call), "device": str(where), "memory": memory}

    def do_write(self, call: int, bases: Sequence[torch.Tensor]) -> None:
        """Other contents at the same addresses."""
        placed: PlacedCall = self.kept(call)
        for mine, other in zip(placed.bases, bases, strict=True):
            mine.copy_(other.to(self.device))
        placed.held = [argument.clone() for argument in placed.written()]
        placed.ran = False

    def do_ready(
        self,
        call: int,
        binding: int | None = None,
        weight: int | None = None,
        step: Mapping[str, Any] | None = None,
        prepare: int | None = None,
        plan: int | None = None,
    ) -> None:
        """The load and step moments of a call, for a binding or for a kernel alone.

        `weight` is the argument that is prepared. Once more where the call ran before.
        """
        placed: PlacedCall = self.kept(call)
        bound: Binding | None = None if binding is None else self.kept(binding)
        if weight is not None:
            able = bound.prepare_weights if bound else self.kept(prepare)  # type: ignore[arg-type]
            placed.arguments[weight] = able(placed.given[weight])
        if step is None:
            return
        there = self.step(step)
        if bound is not None:
            bound.plan(there)
            placed.arguments[-1] = bound.handle
        else:
            placed.arguments[-1] = None if plan is None else self.kept(plan)(there, None)

    def do_run(
        self, call: int, function: int, times: int = 1, bases: bool = True, thread: bool = False
    ) -> dict[str, Any]:
        """Runs a call: each run's results and arguments written in place, then all bases.

        `number` keeps the results of the last run; `thread` runs it in a new thread.
        """
        placed: PlacedCall = self.kept(call)
        able = self.kept(function)
        able = able.run if isinstance(able, Binding) else able
        runs, last = [], ()
        for _ in range(times):
            placed.restore()
            last = as_tuple(
                _in_thread(able, placed.arguments) if thread else able(*placed.arguments)
            )
            self.synchronize()
            found = {"results": [*map(shown, last)], "written": placed.written()}
            runs.append(copied(found) if times > 1 else found)  # the next run may overwrite it
        after = placed.bases if bases else []
        return {"runs": runs, "bases": after, "number": self.keep(last)}

    def do_read(self, results: int) -> list[dict[str, Any]]:
        """Results that were kept, as they are now."""
        self.synchronize()
        return [*map(shown, self.kept(results))]

    def do_live(self, collect: bool = False) -> int:
        """Allocations that nobody has freed; `collect` breaks up cycles first.

        Tensors are not counted, also where the runtime does: a plan keeps its own for good.
        """
        if "opened" not in vars(self):
            return 0
        if collect:
            gc.collect()
        try:
            return RuntimeAdapter.memory_stats(self.runtime, self.index).live_allocations
        except Exception:
            return UNCOUNTED

    def do_echo(self, tensor: torch.Tensor) -> torch.Tensor:
        """tensor: [...], through the device and back."""
        there = self.to_device(tensor)
        self.synchronize()
        return there

    def do_learn(self, package: str, sources: Mapping[str, str]) -> None:
        """Makes modules that can be imported as `package.NAME`, from their texts."""
        sent.install(package, sources)

    def do_look(self, module: str, name: str, given: Mapping[str, Any]) -> Any:
        """What a function `name(device, **given)` of a module gives."""
        return getattr(importlib.import_module(module), name)(self, **given)

    def answer(self, command: str, given: Mapping[str, Any], forget: Sequence[int] = ()) -> Any:
        """Does what is asked, under the environment of policy `error` and no override.

        `forget` are numbers that nobody will ask for any more.
        """
        for number in forget:
            self._kept.pop(number, None)
        with _strict():
            return getattr(self, f"do_{command}")(**given)


def as_tuple(result: Any) -> tuple[Any, ...]:
    """What an operator returned, as a tuple of results."""
    if result is None:
        return ()
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def shown(result: Any) -> dict[str, Any]:
    """A result for whoever asks: the tensor, where it is, its address; or what it is instead."""
    if not isinstance(result, torch.Tensor):
        return {"type": type(result).__name__}
    where = {
        "device": str(result.device),
        "dtype": str(result.dtype),
        "shape": tuple(result.shape),
    }
    if result.device.type == "meta":
        return where
    address = result.data_ptr() if result.numel() else 0
    return where | {"tensor": result, "address": address}


def _alone(name: str) -> AdapterFilter:
    return AdapterFilter(allowed=frozenset({name}))


def _in_thread(run: Fn, arguments: Sequence[Any]) -> Any:
    """The call in a thread of its own; its error is raised here."""
    found: list[Any] = []
    errors: list[BaseException] = []

    def inside() -> None:
        try:
            found.append(run(*arguments))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


@contextmanager
def _strict() -> Iterator[None]:
    """The environment of the default overloads, put back where it is another's process."""
    before = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    os.environ["VA_FALLBACK"] = "error"
    os.environ.pop("VA_OPS", None)
    try:
        yield
    finally:
        for name in ("VA_FALLBACK", "VA_OPS"):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]
