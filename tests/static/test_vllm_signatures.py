"""Our overrides against the snapshot of vLLM's signatures: every one is in it, and would be called
as vLLM calls its own. Both sides are read as source, so that all four platforms are held here."""

from __future__ import annotations

import ast
import json

import pytest
from fake_vllm import SNAPSHOT

from vllm_adapter.broker.vllm_drift import SNAPSHOTS, signatures_in

pytestmark = pytest.mark.static

THEIRS = json.loads(SNAPSHOT.read_text("utf-8"))["signatures"]
PLATFORMS = [owner for owner in THEIRS if owner.startswith("platforms/") and owner[-1] != ":"]
OVERRIDES = {
    "mixin.py:PortableMixin": PLATFORMS,
    "attention.py:PortableBuilder": ["v1/attention/backend.py:AttentionMetadataBuilder"],
    "attention.py:PortableImpl": [
        "v1/attention/backend.py:AttentionImpl",
        "v1/attention/backends/cpu_attn.py:CPUAttentionBackendImpl",
    ],
    "attention.py:PortableBackend": ["v1/attention/backend.py:AttentionBackend"],
    "linear.py:PortableLinearMethod": ["model_executor/layers/linear.py:UnquantizedLinearMethod"],
    "compiler.py:AdapterCompiler": ["compilation/compiler_interface.py:CompilerInterface"],
    "generic/platform.py:_DevicePlatform": ["platforms/interface.py:Platform"],
    "generic/platform.py:_GenericMixin": ["platforms/interface.py:Platform"],
    "generic/worker.py:GenericWorker": ["v1/worker/gpu_worker.py:Worker"],
    "generic/model_runner.py:GenericModelRunner": ["v1/worker/gpu_model_runner.py:GPUModelRunner"],
    "generic/communicator.py:HostStagedCommunicator": [
        "distributed/device_communicators/base_device_communicator.py:DeviceCommunicatorBase"
    ],
    "generic/lora.py:TorchPunica": ["lora/punica_wrapper/punica_cpu.py:PunicaWrapperCPU"],
}
OURS_ALONE = {
    "attention.py:PortableImpl": {"bind"},
    "linear.py:PortableLinearMethod": {"__init__"},  # nobody but us makes one
}


def parsed(signature):
    kind, _, rest = signature.partition("(")
    return kind.strip(), ast.parse(f"def f({rest}: ...").body[0].args


def accepts(ours, theirs):
    """Whether a call that suits `theirs`, by place or by name, suits `ours`."""
    (our_kind, a), (their_kind, b) = parsed(ours), parsed(theirs)
    mine = [arg.arg for arg in (*a.posonlyargs, *a.args)]
    wanted = [arg.arg for arg in (*b.posonlyargs, *b.args)]
    same = mine[: len(wanted)] == wanted[: len(mine)]
    room = len(mine) >= len(wanted) or a.kwarg is not None
    extra = mine[len(wanted) :]
    return our_kind == their_kind and same and room and len(extra) <= len(a.defaults)


def overridden():
    for ours, owners in OVERRIDES.items():
        for name, (signature, _) in signatures_in(SNAPSHOTS, ours).items():
            if name not in OURS_ALONE.get(ours, ()) and (name[0] != "_" or name == "__init__"):
                yield ours, name, signature, owners


CASES = list(overridden())


def test_the_classes_are_there():
    assert {ours for ours, *_ in CASES} == OVERRIDES.keys()
    assert len(PLATFORMS) == 5


@pytest.mark.parametrize(("ours", "name", "signature", "owners"), CASES, ids=lambda v: str(v)[:40])
def test_an_override_takes_what_vllm_gives(ours, name, signature, owners):
    known = {owner: THEIRS[owner][name] for owner in owners if name in THEIRS[owner]}
    assert any(known.values()), f"{name} is missing in the snapshot of {owners}"
    refused = {o: s for o, s in known.items() if s is not None and not accepts(signature, s)}
    assert not refused


@pytest.mark.parametrize(
    ("ours", "theirs", "answer"),
    [
        ("(self, a, b=None)", "(self, a, b=1)", True),
        ("(self, a)", "(self, a, b=1)", False),
        ("(self, a, **kw)", "(self, a, b=1)", True),
        ("(self, b, a)", "(self, a, b)", False),
        ("(self, a, extra)", "(self, a)", False),
        ("(self, a, extra=0)", "(self, a)", True),
        ("classmethod (cls)", "(cls)", False),
    ],
)
def test_what_accepting_means(ours, theirs, answer):
    assert accepts(ours, theirs) is answer
