"""One adapter's plug-in behind a guard: imported on the first call, asked alone, blamed by name.

pluggy checks the implementations' arguments. Each adapter has a PluginManager of its own, since a
raising implementation in a broadcast would silence all others.
"""

from __future__ import annotations

import importlib
import re
import shlex
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from vllm_adapter.contract.capability import Capability, load_capability
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord
from vllm_adapter.errors import AdapterError, CapabilityError, VllmAdapterError

if TYPE_CHECKING:
    import pluggy

    from vllm_adapter.settings import Settings

T = TypeVar("T")
_LIBRARY: Final = re.compile(r"(lib[\w.+-]+\.so[\w.]*)\S*:? cannot open shared object file")
_MACHINERY: Final = re.compile(r"[/\\](pluggy|importlib)[/\\]|^<frozen")
_LINE: Final = 300


class Adapter:
    """An installed adapter, from its record. Making one imports nothing of the adapter."""

    def __init__(self, record: AdapterRecord) -> None:
        self.record = record
        self._manager: pluggy.PluginManager | None = None

    def call(self, hook: str, **arguments: Any) -> Any:
        """What the adapter's implementation of `hook` gives; None if it has none.

        Raises:
            AdapterError: the plug-in cannot be imported or registered, or the implementation
                raised; the message has the adapter, the hook, the line and the original error.
        """
        from vllm_adapter.contract.hookspecs import HOOKS

        if hook not in HOOKS:
            raise ValueError(f"{hook!r} is no hook; hooks: {', '.join(HOOKS)}")
        manifest = self.record.manifest
        if manifest is None or manifest.plugin is None:
            return None
        if self._manager is None:
            self._manager = self._load(manifest.plugin)
        caller = getattr(self._manager.hook, hook)
        return self._guard(f"its hook `{hook}`", lambda: caller(**arguments))

    def capability(self, device: DeviceRecord, settings: Settings) -> Capability:
        """The device's descriptor, refined with its live values.

        A file that VA_CAPABILITY names replaces both: what its author wrote is what counts.

        Raises:
            CapabilityError: the file cannot be used, or is for another device.
            AdapterError: no descriptor fits the device, or the live values do not fit it.
        """
        if settings.capability is not None:
            return _for_device(load_capability(settings.capability), device)
        if device.capability_file is None:
            raise AdapterError(
                f"adapter {self.record.name} has no capability descriptor for {device.torch} "
                f"({device.name})",
                hint="name one with VA_CAPABILITY=FILE, or upgrade the adapter",
            )
        static = load_capability(device.capability_file)
        if not device.live:
            return static
        try:
            return static.refined(device.live)
        except (CapabilityError, TypeError, AttributeError) as error:
            raise AdapterError(
                f"adapter {self.record.name}: what its hook `describe` gave for {device.torch} "
                f"does not fit its descriptor: {one_line(error)}",
                hint="the hook must return the descriptor's own shape",
            ) from error

    def _load(self, plugin: str) -> pluggy.PluginManager:
        import pluggy

        from vllm_adapter.contract.hookspecs import PROJECT, AdapterSpec

        module, _, path = plugin.partition(":")
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(AdapterSpec)
        instance = self._guard(f"importing its plug-in {plugin}", lambda: _make(module, path))
        try:
            self._guard(f"registering {plugin}", lambda: manager.register(instance))
            self._guard(f"checking the hooks of {plugin}", manager.check_pending)
        except AdapterError:
            # Some releases of pluggy keep the hooks that they took before the failure.
            if manager.is_registered(instance):
                manager.unregister(instance)
            raise
        return manager

    def _guard(self, what: str, action: Callable[[], T]) -> T:
        try:
            return action()
        except (Exception, SystemExit) as error:
            where = place(error, self.record.path)
            raise AdapterError(
                f"adapter {self.record.name}: {what} failed: {type(error).__name__}: "
                f"{one_line(error)}{where}",
                hint=f"run `{library_command(error) or probe_command(self.record.name)}`",
            ) from error


def _for_device(capability: Capability, device: DeviceRecord) -> Capability:
    """A replacing descriptor, unless it describes another arch or another torch device type."""
    arch, kind = capability.identity.arch, capability.identity.torch_type
    own = device.torch.partition(":")[0]
    other = None
    if device.arch is not None and arch != device.arch:
        other = f"is for the arch {arch}, and {device.torch} is {device.arch}"
    elif kind is not None and kind != own:
        other = f"is for the torch device type {kind}, and {device.torch} is {own}"
    if other is not None:
        raise CapabilityError(
            f"VA_CAPABILITY={capability.origin} {other} ({device.name})",
            hint="correct its /identity, or unset VA_CAPABILITY",
        )
    return capability


def probe_command(name: str) -> str:
    """The command that shows an adapter's crash, hang or traceback without our guards."""
    return f"python -X faulthandler -m vllm_adapter.discovery.probe._child {name}"


def library_command(error: BaseException | None) -> str | None:
    """The command to look for the library that an error says is missing; None if it says none."""
    missing = _LIBRARY.search(str(error))
    return f"ldconfig -p | grep {shlex.quote(missing[1])}" if missing else None


def _make(module: str, path: str) -> object:
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    instance: object = found()
    return instance


def one_line(error: BaseException) -> str:
    """An error's text as one line of bounded length."""
    text = error.message if isinstance(error, VllmAdapterError) else str(error)
    line = " ".join(text.split()) or "no text"
    return line if len(line) <= _LINE else f"{line[:_LINE]}..."


def place(error: BaseException, package: Path | None = None) -> str:
    """` (file:line)` of the innermost frame of the adapter's own files, else of any."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}:{error.lineno})"
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and not _MACHINERY.search(frame.filename)
    ]
    own = [frame for frame in theirs if package and frame.filename.startswith(f"{package}/")]
    return next((f" ({frame.filename}:{frame.lineno})" for frame in reversed(own or theirs)), "")
