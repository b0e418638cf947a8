"""vLLM's two entry points, against a vLLM that is made of two fake modules."""

from __future__ import annotations

import dataclasses
import os
import sys
import types

import importlib_metadata
import pytest

from vllm_adapter.broker import plugin as vllm_plugin
from vllm_adapter.broker.foreign import NAME
from vllm_adapter.broker.selection import PLATFORMS, ConsideredAdapter, Selection
from vllm_adapter.errors import DeviceRefused, UnsupportedCase, VllmAdapterError

pytestmark = pytest.mark.static

CHOSEN = Selection("cpu", "the only one", "cpu", "cpu", "native", f"{PLATFORMS}.NativeCpu")
ASIDE = Selection(
    None, "no adapter is installed", considered=(ConsideredAdapter("x", "d", "1", "ok"),)
)


class Ours:
    device_type = "cpu"


class Theirs:
    device_type = "cpu"


@pytest.fixture
def vllm(monkeypatch):
    """vllm(selection, active) sets the stage; gives the list of calls of operators.register."""
    calls = []
    vllm_plugin.forget()
    for name in [n for n in os.environ if n.startswith(("VA_", "_VA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(vllm_plugin.PRINTED_TOPICS, "")

    def to_device(selection, active=Ours, warnings=(), register=calls.append):
        def shared(settings):
            if isinstance(selection, Exception):
                raise selection
            return selection, warnings

        monkeypatch.setattr(vllm_plugin, "shared_selection", shared)
        fakes = {
            "vllm": {},
            "vllm.platforms": {"current_platform": active()},
            PLATFORMS: {"NativeCpu": Ours},
            vllm_plugin.OPERATORS: {"register": register},
        }
        for name, members in fakes.items():
            module = types.ModuleType(name)
            vars(module).update(members)
            monkeypatch.setitem(sys.modules, name, module)
        return calls

    yield to_device
    vllm_plugin.forget()


def test_both_entries_have_one_name():
    for group, function in (("platform", "platform"), ("general", "register")):
        points = importlib_metadata.entry_points(group=f"vllm.{group}_plugins")
        (point,) = [p for p in points if p.value.startswith("vllm_adapter.")]
        assert point.name == NAME
        assert point.load() is getattr(vllm_plugin, function)


def test_the_chosen_adapter_s_platform_and_operators(vllm, capsys):
    calls = vllm(CHOSEN)
    assert vllm_plugin.platform() == vllm_plugin.platform() == CHOSEN.platform
    vllm_plugin.register()
    assert calls == [CHOSEN]
    assert capsys.readouterr().err == "vllm-adapter: adapter cpu serves cpu: the only one\n"


def test_a_child_is_quiet(vllm, capsys):
    vllm(CHOSEN)
    vllm_plugin.platform()
    capsys.readouterr()
    vllm_plugin.forget()  # as in a child, which inherits the environment
    vllm_plugin.platform()
    assert capsys.readouterr().err == ""


def test_stepping_aside_says_why_and_touches_nothing(vllm, capsys):
    calls = vllm(ASIDE, Theirs)
    assert vllm_plugin.platform() is None
    vllm_plugin.register()
    assert calls == []
    said = capsys.readouterr().err
    assert "steps aside, vLLM stays as it is: no adapter is installed" in said
    assert "x (ok)" in said


@pytest.mark.parametrize("error", [RuntimeError("disk on fire"), MemoryError()])
def test_whatever_goes_wrong_vllm_stays_as_it_is(vllm, capsys, error):
    calls = vllm(error, Theirs)
    assert vllm_plugin.platform() is None
    vllm_plugin.register()
    assert calls == []
    assert capsys.readouterr().err.count("steps aside") == 1


def test_a_setting_that_cannot_be_read_is_said(vllm, capsys, monkeypatch):
    vllm(CHOSEN)
    monkeypatch.setenv("VA_FALLBACK", "perhaps")
    assert vllm_plugin.platform() is None
    assert "VA_FALLBACK is 'perhaps'" in capsys.readouterr().err


def test_another_platform_gets_no_operators(vllm, capsys):
    calls = vllm(CHOSEN, Theirs)
    vllm_plugin.register()
    assert calls == []
    assert "vLLM runs on Theirs, not on our platform" in capsys.readouterr().err


@pytest.mark.parametrize("selection", [CHOSEN, ASIDE, RuntimeError("no")])
def test_the_required_device_is_judged_by_what_vllm_runs_on(vllm, monkeypatch, selection):
    vllm(selection, Theirs)
    monkeypatch.setenv("VA_REQUIRE_DEVICE", "cpu")
    vllm_plugin.register()
    monkeypatch.setenv("VA_REQUIRE_DEVICE", "cuda")
    with pytest.raises(DeviceRefused, match="VA_REQUIRE_DEVICE is cuda, and vLLM runs on cpu"):
        vllm_plugin.register()


def test_operators_that_fail_are_left_to_vllm_or_refused_by_policy(vllm, monkeypatch, capsys):
    def register(selection):
        raise UnsupportedCase("no rms_norm for hidden 7", hint="pad it")

    vllm(CHOSEN, register=register)
    vllm_plugin.register()
    assert "operators stay vLLM's own: UnsupportedCase: no rms_norm" in capsys.readouterr().err
    monkeypatch.setenv("VA_FALLBACK", "error")
    with pytest.raises(VllmAdapterError, match="hidden 7"):
        vllm_plugin.register()


def test_a_device_that_vllm_does_not_know_has_nothing_to_be_left_to(vllm):
    def register(selection):
        raise UnsupportedCase("no rms_norm for hidden 7", hint="pad it")

    vllm(dataclasses.replace(CHOSEN, shape="generic"), register=register)
    with pytest.raises(VllmAdapterError, match="hidden 7"):
        vllm_plugin.register()


def test_warnings_of_the_selection_are_said_once(vllm, capsys):
    vllm(CHOSEN, warnings=("s.json is torn; a new selection is made",))
    vllm_plugin.platform()
    vllm_plugin.platform()
    assert capsys.readouterr().err.count("warning: s.json is torn") == 1


def test_the_module_imports_neither_vllm_nor_torch(site):
    done = site.run(
        "-c",
        "import sys, vllm_adapter.broker.plugin as p; p.platform();"
        "print([m for m in ('vllm', 'torch', 'pluggy', 'jsonschema') if m in sys.modules])",
        variables={"VA_ADAPTERS": "nobody"},
    )
    assert done.stdout == "[]\n", done.stderr
    assert "steps aside" in done.stderr
