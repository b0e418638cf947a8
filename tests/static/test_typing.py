"""A type checker holds a plug-in to the hooks that core specifies, through the public names."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pluggy
import pytest
from mypy import api

from vllm_adapter import AdapterSpec, hookimpl

pytestmark = pytest.mark.static

ROOT = Path(__file__).parents[2]
HEAD = """
from __future__ import annotations
from collections.abc import Mapping, Sequence
from typing import Any, override
from vllm_adapter import (
    Accept, AdapterSpec, Capability, Finding, HostFacts, OutOfMemory, Reject, RuntimeAdapter,
    hookimpl, implementation,
)
"""
PLUG_INS = {
    "right": (
        """
        class Plugin(AdapterSpec):
            @hookimpl
            @override
            def probe(self, host: HostFacts) -> Sequence[Mapping[str, Any]] | None:
                return [{"name": node.path} for node in host.nodes]

            @hookimpl
            def describe(self, device: str, host: HostFacts) -> Mapping[str, Any]:
                return {"identity": {"name": host.cpu.model}}

            @hookimpl
            def open_runtime(self, device: str, capability: Capability) -> RuntimeAdapter | None:
                raise OutOfMemory("it is full", hint="free some")

            @hookimpl
            def diagnose(self, host: HostFacts) -> Sequence[Finding]:
                return []

            @hookimpl
            def implementations(self) -> list[Any]:
                return [norm]

        @implementation(op="rms_norm", dtypes=["float32"])
        def norm(x: int) -> int:
            return x
        """,
        "",
    ),
    "free": (  # not derived: it may take fewer arguments
        """
        class Plugin:
            @hookimpl
            def describe(self, host: HostFacts) -> Mapping[str, Any]:
                return {}
        """,
        "",
    ),
    "argument_type": (
        """
        class Plugin(AdapterSpec):
            @hookimpl
            def probe(self, host: str) -> Sequence[Mapping[str, Any]] | None:
                return None
        """,
        'Argument 1 of "probe" is incompatible with supertype',
    ),
    "return_type": (
        """
        class Plugin(AdapterSpec):
            @hookimpl
            def open_runtime(self, device: str, capability: Capability) -> str:
                return device
        """,
        'Return type "str" of "open_runtime" incompatible',
    ),
    "hook_name": (
        """
        class Plugin(AdapterSpec):
            @hookimpl
            @override
            def descibe(self, device: str, host: HostFacts) -> Mapping[str, Any]:
                return {}
        """,
        'Method "descibe" is marked as an override',
    ),
    "facts": (
        """
        class Plugin(AdapterSpec):
            @hookimpl
            def describe(self, device: str, host: HostFacts) -> Mapping[str, Any]:
                return {"cores": host.cores}
        """,
        '"HostFacts" has no attribute "cores"',
    ),
    "public_name": (
        """
        from vllm_adapter import hookimp
        """,
        'Module "vllm_adapter" has no attribute "hookimp"',
    ),
    "keyword": (
        """
        @implementation(op="rms_norm", dtype="float32")
        def norm(x: int) -> int:
            return x
        """,
        'Unexpected keyword argument "dtype"',
    ),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What mypy says of each plug-in, all checked in one run that reads no torch."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "mypy.ini").write_text(
        "[mypy]\nstrict = True\npython_version = 3.12\nfollow_imports = silent\n"
        f"mypy_path = {':'.join(str(ROOT / p) for p in ('core/src', 'vendors/src'))}\n"
        "[mypy-torch.*,transformers.*]\nfollow_imports = skip\nignore_missing_imports = True\n"
    )
    for name, (source, _) in PLUG_INS.items():
        (folder / f"{name}.py").write_text(HEAD + textwrap.dedent(source))
    files = [str(folder / f"{name}.py") for name in PLUG_INS]
    options = ["--config-file", str(folder / "mypy.ini"), "--cache-dir", str(folder / "cache")]
    text, trouble, _ = api.run([*options, *files])
    assert not trouble
    lines = text.splitlines()
    return {name: [x for x in lines if f"{name}.py:" in x] for name in PLUG_INS}


@pytest.mark.parametrize(("name", "expected"), [(n, e) for n, (_, e) in PLUG_INS.items()])
def test_mypy_says_what_is_wrong_with_a_plug_in(said, name, expected):
    assert bool(said[name]) is bool(expected), said[name]
    assert expected in "\n".join(said[name])


def test_a_hook_of_no_such_name_is_refused_when_it_is_registered():
    class Plugin(AdapterSpec):
        @hookimpl
        def descibe(self, device: str) -> None: ...

    manager = pluggy.PluginManager("vllm_adapter")
    manager.add_hookspecs(AdapterSpec)
    manager.register(Plugin())
    with pytest.raises(pluggy.PluginValidationError, match="descibe"):
        manager.check_pending()


def test_so_is_an_argument_of_no_such_name():
    class Plugin(AdapterSpec):
        @hookimpl
        def describe(self, dev: str) -> None: ...

    manager = pluggy.PluginManager("vllm_adapter")
    manager.add_hookspecs(AdapterSpec)
    with pytest.raises(pluggy.PluginValidationError, match="'dev'"):
        manager.register(Plugin())


def test_a_class_that_derives_has_no_hooks_but_its_own():
    class Plugin(AdapterSpec):
        @hookimpl
        def describe(self, device: str) -> dict[str, str]:
            return {"device": device}

    manager = pluggy.PluginManager("vllm_adapter")
    manager.add_hookspecs(AdapterSpec)
    plugin = Plugin()
    manager.register(plugin)
    manager.check_pending()
    assert [caller.name for caller in manager.get_hookcallers(plugin)] == ["describe"]
    assert manager.hook.describe(device="a", host=None) == {"device": "a"}
