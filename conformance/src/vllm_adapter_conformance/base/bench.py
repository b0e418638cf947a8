"""The bench: the judge's hold on the device, which another process has.

What acts on the device is asked of that process, and what comes back is data. The judge never
imports a module of the adapter; the process never sees a reference, a budget or the seed.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypeVar

from vllm_adapter.discovery.adapter import one_line
from vllm_adapter.engine.device_process.errors import ProcessEnded
from vllm_adapter.errors import AdapterError
from vllm_adapter.settings import AdapterFilter, Fallback, Settings
from vllm_adapter_conformance.base.emulation import open_emulated
from vllm_adapter_conformance.base.target import Target, open_from_json
from vllm_adapter_conformance.device_side.loaded import what_ran

if TYPE_CHECKING:
    import torch

    from vllm_adapter.engine.device import OpenDevice
    from vllm_adapter.engine.device_process.client import Asking
    from vllm_adapter.engine.device_process.held import HeldDevice
    from vllm_adapter.engine.runtime import RuntimeAdapter
    from vllm_adapter_conformance.serving.runs import Runs

T = TypeVar("T")
SENT: Final = "vllm_adapter_conformance.device_side"
"""The room whose modules are sent to the device's process as texts, under another name."""
AS: Final = "device_work"
LAST_WORD_S: Final = 20.0
"""For a process to say what it has loaded, before it is ended."""
OPENING_S: Final = 180.0
"""For a new process to import torch and open the device."""


@dataclass(frozen=True, slots=True)
class LastWord:
    """What a process of the device said before it was ended."""

    files: Sequence[str] = ()
    """Absolute paths of all that it had loaded."""
    facts: Mapping[str, int] = field(default_factory=dict)
    """`memory_bytes` of the device, where its runtime says it."""
    silent: str | None = None
    """Why it did not say so, although it was there to be asked."""

    @classmethod
    def of(cls, found: Any) -> LastWord:
        """From what that process sent, which is an adapter's as much as ours.

        Raises:
            ValueError: it is something else.
        """
        if not (isinstance(found, dict) and found.keys() == {"files", "facts"}):
            raise ValueError("it gave something else than its files")
        files, facts = found["files"], found["facts"]
        if not (isinstance(files, list) and all(_is_path(one) for one in files)):
            raise ValueError("its files are no paths")
        if not (isinstance(facts, dict) and facts.keys() <= {"memory_bytes"}):
            raise ValueError("it said something else than the device's memory")
        if not all(type(value) is int and value >= 0 for value in facts.values()):
            raise ValueError("the device's memory is no number of bytes")
        return cls(files, facts)


def _is_path(found: object) -> bool:
    return isinstance(found, str) and "\0" not in found and found.startswith("/")


class Kept:
    """Something that the device's process keeps under a number, until this is gone."""

    def __init__(self, number: int, forgotten: list[int]) -> None:
        self.number = number
        weakref.finalize(self, forgotten.append, number).atexit = False


class BoundOperator(Kept):
    """An operator that is bound there. `providers` are the names of the winners."""

    def __init__(self, number: int, forgotten: list[int], providers: tuple[str, ...]) -> None:
        super().__init__(number, forgotten)
        self.providers = providers


@dataclass(frozen=True, slots=True)
class DeviceName:
    """A device of torch's, in a process where torch may not know its type."""

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


class Bench:
    """Gives checks the adapter's device.

    The policy is `error` and no other adapter is asked, whatever VA_FALLBACK and VA_ADAPTERS are.
    """

    def __init__(
        self,
        target: Target,
        scratch: Path | None = None,
        open_serving: Callable[[Target, Path], Runs] | None = None,
        *,
        apart: bool = False,
        variables: Mapping[str, str] | None = None,
        hear: Callable[[LastWord], None] | None = None,
    ) -> None:
        """`apart`: the device is in a process of its own, and not in this one.

        `hear` gets the last word of each such process that is there when it is ended; `variables`
        are put into its environment.

        `scratch` keeps the results of vLLM's engines for the workers of one run, and what the
        device's processes print. `open_serving` starts vLLM, for a bench that is to judge L4.
        """
        self.target, self.apart = target, apart
        self.say: Callable[[str], None] = lambda text: None
        """Tells whoever waits how far a long check is."""
        self._given_scratch, self._variables = scratch, variables
        self._open_serving, self._hear = open_serving, hear
        alone = AdapterFilter(allowed=frozenset({target.record.name}))
        self.settings = Settings(
            fallback=Fallback.ERROR, adapter=target.record.name, adapters=alone
        )
        self._asking: Asking | None = None
        self._forgotten: list[int] = []
        self._others = 0
        self.processes = 0
        """How many were started for the device."""
        self._asked = self._taught = self._knows_the_suite = self._in_a_case = False
        self._limit = self._left = math.inf
        self.overdue = False
        """Whether the device's process was ended in this case, since its time was over."""

    @cached_property
    def scratch(self) -> Path:
        """A folder for this run."""
        if self._given_scratch is None:
            self._own_scratch = TemporaryDirectory(prefix="vllm-adapter-")
            return Path(self._own_scratch.name)
        return self._given_scratch

    @cached_property
    def serving(self) -> Runs:
        """Real vLLM, plain and with the adapter; engines start at the first use."""
        assert self._open_serving is not None, "a bench without vLLM was asked for it"
        return self._open_serving(self.target, self.scratch / "serving")

    # The device's process.

    @property
    def is_open(self) -> bool:
        """Whether the device's process has been asked for something, and is there."""
        return self._asking is not None and self._asked

    @property
    def where(self) -> str:
        """The device as torch names it: "cuda:0"."""
        if self.target.device is None:
            raise AdapterError(
                f"adapter {self.target.record.name} has no device on this machine",
                hint="levels above L0 need the device: run on a machine that has it",
            )
        return self.target.device.torch

    @property
    def device(self) -> DeviceName:
        """The device's torch type and index; `str()` is `where`."""
        kind, _, index = self.where.partition(":")
        return DeviceName(kind, int(index) if index else None)

    @property
    def index(self) -> int:
        """The device's index."""
        _ = self.where
        assert self.target.device is not None
        return self.target.device.index

    def begin(self, seconds: float) -> None:
        """A case begins, for which the device has so long: the judge's own time is not counted."""
        self.allow(seconds)
        self._in_a_case = self.overdue = False

    def allow(self, seconds: float) -> None:
        """What follows may keep the device busy for so long."""
        self._limit = self._left = seconds

    @property
    def used(self) -> float:
        """Seconds that the device has been busy since then."""
        return self._limit - self._left

    def open(self) -> Mapping[str, str]:
        """Opens the device, and says what its runtime is.

        Raises:
            VllmAdapterError, RemoteError: it cannot be opened.
            ProcessEnded: as `ask`.
        """
        found: Mapping[str, str] = self.ask("open")
        return found

    def ask(self, command: str, **given: Any) -> Any:
        """What a command of `HeldDevice` gives; errors as `Asking.ask` has them."""
        return self._ask(command, given, by_name=False)

    def observe(self, look: Callable[..., T], **given: Any) -> T:
        """What `look(device, **given)` saw on the device: it acts and reports, and judges nothing.

        `look` is a function of a module, and gets the `HeldDevice`. Given and seen are plain data:
        None, numbers, strings, bytes, host tensors, and lists, tuples or dicts of them. Whoever
        asks has drawn what is given and decides whether what was seen is right.
        """
        module, sent = look.__module__, look.__module__.startswith(f"{SENT}.")
        if sent and self.apart:
            module = f"{AS}.{module.removeprefix(f'{SENT}.')}"
            self._unlearn()
            self._teach()
        given = {"module": module, "name": look.__name__, "given": given}
        seen: T = self._ask("look", given, by_name=not sent)
        return seen

    def bind(self, op: str, facts: Mapping[str, Any]) -> BoundOperator:
        """Binds a case on the device under policy `error`."""
        found = self.ask("bind", op=op, facts=dict(facts))
        return BoundOperator(found["number"], self._forgotten, tuple(found["providers"]))

    def function(self, kind: str, name: str) -> Kept:
        """A function there: a `packet` of torch.ops.vllm_adapter, or a `kernel`, "module:name"."""
        return self.kept(self.ask("function", kind=kind, name=name))

    def kept(self, number: int) -> Kept:
        """A number that the process gave, to be forgotten there with the result."""
        return Kept(number, self._forgotten)

    def is_sound(self) -> bool:
        """Whether the device still does what it is told, after something has failed there."""
        if not self.is_open:
            return True
        import torch

        sent = torch.arange(8)
        try:
            return torch.equal(self.ask("echo", tensor=sent), sent)
        except Exception:
            return False

    def live_allocations(self, *, collect: bool = False) -> int:
        """Allocations that nobody has freed there; where they cannot be counted, more than any."""
        return 0 if not self.is_open else int(self.ask("live", collect=collect))

    def beside(self, variables: Mapping[str, str]) -> Bench:
        """A bench of the same device, in one more process, with variables in its environment.

        Whoever asks for it has to `end` it.
        """
        self._others += 1
        scratch = self.scratch / f"beside-{self._others}"
        scratch.mkdir()
        return Bench(self.target, scratch, apart=True, variables=variables, hear=self._hear)

    def end(self) -> None:
        """Ends the device's process, if there is one: the next one that is needed is new."""
        if self._asking is not None and self.apart:
            if self._hear is not None and self._asked and self._asking.is_up:
                self._hear(self._last_word(self._asking))
            self._asking.end()
            self._asking = None
            self._forgotten = []  # numbers of that process are nobody's in the next one
            self._asked = self._taught = self._knows_the_suite = False

    def _last_word(self, asking: Asking) -> LastWord:
        """What the process has loaded; it is its last word, whatever the case may still have."""
        look = {"module": f"{AS}.{what_ran.__module__.removeprefix(f'{SENT}.')}"}
        try:
            asking.ask("learn", {"package": AS, "sources": _texts()}, LAST_WORD_S)
            found = asking.ask(
                "look", {**look, "name": what_ran.__name__, "given": {}}, LAST_WORD_S
            )
            return LastWord.of(found)
        except Exception as error:  # of the adapter's process, which may send any
            return LastWord(silent=f"{type(error).__name__}: {one_line(error)}")

    def start(self) -> None:
        """Starts the process, and does not wait for it."""
        if self._asking is None:
            self._start()

    def _ask(self, command: str, given: Mapping[str, Any], *, by_name: bool) -> Any:
        """`by_name`: a module of ours is imported there, by its name."""
        if not by_name:
            self._unlearn()
        asking = self._asking or self._start()
        if self.apart and not self._asked:
            self._open_first(asking)
        self._asked = self._in_a_case = True
        self._knows_the_suite |= by_name and self.apart
        forget, self._forgotten[:] = list(self._forgotten), []
        begin, given_before = time.monotonic(), asking.given_s()
        try:
            return asking.ask(command, given, max(0.0, self._left), forget)
        except ProcessEnded as ended:
            ended.limit = self._limit
            self.overdue |= ended.hung
            self.end()
            raise
        finally:
            # What was given is counted in steps, and a short call is not charged for one.
            self._left -= min(time.monotonic() - begin, asking.given_s() - given_before)

    def _unlearn(self) -> None:
        """Before a case, ends a process with our modules: a kernel that sees them is warned.

        An emulated device is opened by one of them, in each process that there is.
        """
        if self._knows_the_suite and not self._in_a_case and self.target.emulator is None:
            self.end()

    def _open_first(self, asking: Asking) -> None:
        """Opens the device in a new process, with a limit of its own: it is no part of a case."""
        try:
            asking.ask("open", {}, OPENING_S)
        except ProcessEnded as ended:
            ended.limit = OPENING_S
            self.end()
            raise
        except Exception:
            return  # what is asked next meets the error again, and has its words

    def _start(self) -> Asking:
        from vllm_adapter.engine.device_process.client import OwnProcess, SameProcess

        _ = self.where
        if not self.apart:
            self._asking = SameProcess(self.held)
            return self._asking
        assert self.target.device is not None
        order: dict[str, Any] = {
            "record": self.target.record.to_json(),
            "index": self.target.device.index,
        }
        if self.target.emulator is not None:
            order["opener"] = f"{open_from_json.__module__}:{open_from_json.__name__}"
            order["given"] = {"target": replace(self.target, seed=0).to_json()}
        self.processes += 1
        log = self.scratch / f"device-{self.processes}.log"
        self._asking = OwnProcess(order, log, self._variables)
        return self._asking

    def _teach(self) -> None:
        if not self._taught:
            self.ask("learn", package=AS, sources=_texts())
            self._taught = True

    # The device itself, where it is in this process.

    @cached_property
    def held(self) -> HeldDevice:
        """The device of this process; opened at the first use."""
        from vllm_adapter.engine.device_process.held import HeldDevice

        assert not self.apart, "the device is in another process: observe() it"
        _ = self.where
        record, device = self.target.record, self.target.device
        assert device is not None
        if self.target.emulator is not None:
            return HeldDevice(lambda: open_emulated(self.target), record.name)
        return HeldDevice.of_record(record, device.index)

    @property
    def opened(self) -> OpenDevice:
        """The device, its runtime and operators."""
        return self.held.opened

    @property
    def runtime(self) -> RuntimeAdapter:
        """The device's runtime."""
        return self.held.runtime

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device, of its own memory also where the device is the host."""
        return self.held.to_device(tensor)


def _texts() -> dict[str, str]:
    """The modules that are sent to the device's process, by name."""
    return {
        file.name.removesuffix(".py"): file.read_text(encoding="utf-8")
        for file in resources.files(SENT).iterdir()
        if file.name.endswith(".py") and file.name != "__init__.py"
    }
