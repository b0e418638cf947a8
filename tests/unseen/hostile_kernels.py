"""Adapters whose kernels misbehave, beside the cpu adapter, in one process of transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fake_dist import PLUGINS
from unseen.hostile_packages import dist, package

DESCRIPTOR = PLUGINS / "mutants/vllm_adapter_mutants/capabilities/any.json"
GOOD = """
import torch
from vllm_adapter.engine.ops import generic

def rms_norm(x, weight, eps):
    return generic.rms_norm(x, weight, eps)
"""
WRONG = "\ndef rms_norm(x, weight, eps):\n    return generic.rms_norm(x, weight, eps) * 0.5\n"
IMPL = """
lib = torch.library.Library("vllm_adapter", "FRAGMENT")
lib.impl("{op}", lambda x, weight, eps: x * 7, "CPU")
"""
OVERRIDE = """
import warnings
warnings.simplefilter("ignore")
lib = torch.library.Library("vllm_adapter", "IMPL")
lib.impl("rms_norm.cpu", lambda x, weight, eps: x * 7, "CPU", allow_override=True)
"""
DEFINE = """
lib = torch.library.Library("vllm_adapter", "FRAGMENT")
lib.define("rms_norm.cpu(Tensor x, Tensor weight, float eps) -> Tensor")
lib.impl("rms_norm.cpu", lambda x, weight, eps: x * 7, "CPU")
"""


@dataclass(frozen=True)
class Kernels:
    """The module, the adapters adapted in turn, and what each may give.

    Words: `equal` to plain transformers, `other` numbers, `refused` by an error of ours that names
    the adapter, `raised` (the kernel's own error, at a call).
    """

    name: str
    source: str
    turns: tuple[tuple[str, tuple[str, ...]], ...]
    form: str = "torch"


QUIT = "import sys\nsys.exit(0)\n"
NO_DRIVER = "raise OSError('no driver')\n"
V, C = "villain", "cpu"
CASES = [
    Kernels("healthy", GOOD, ((V, ("equal",)), (C, ("equal",)))),
    Kernels("prints at import", "print('hello')\n" + GOOD, ((V, ("equal",)), (C, ("equal",)))),
    Kernels("sys.exit at import", QUIT, ((V, ("refused",)), (C, ("equal",)))),
    Kernels(
        "raises at import", "raise OSError('no driver')\n", ((V, ("refused",)), (C, ("equal",)))
    ),
    Kernels("syntax error", "def (\n", ((V, ("refused",)), (C, ("equal",)))),
    Kernels("has no such function", "x = 1\n", ((V, ("refused",)), (C, ("equal",)))),
    Kernels("its function is a number", "rms_norm = 3\n", ((V, ("refused",)), (C, ("equal",)))),
    Kernels(
        "raises at the call",
        "def rms_norm(x, weight, eps):\n    raise ValueError('bug')\n",
        ((V, ("refused", "raised")), (C, ("equal",))),
    ),
    Kernels("a wrong one, then cpu", GOOD + WRONG, ((V, ("other",)), (C, ("equal",)))),
    Kernels("cpu, then a wrong one", GOOD + WRONG, ((C, ("equal",)), (V, ("other",)))),
    Kernels(
        "cpu, wrong, cpu, wrong",
        GOOD + WRONG,
        ((C, ("equal",)), (V, ("other",)), (C, ("equal",)), (V, ("other",))),
    ),
    Kernels(
        "a wrong kernel behind an overload",
        GOOD + WRONG,
        ((V, ("other",)), (C, ("equal",))),
        "kernel",
    ),
    Kernels(
        "raises, and was opened before cpu",
        "raise OSError('no driver')\n",
        ((V, ("refused",)), (V, ("refused",)), (C, ("equal",))),
    ),
    Kernels(
        "implements the default overload",
        GOOD + IMPL.format(op="rms_norm"),
        ((V, ("equal", "refused")), (C, ("equal", "refused"))),
    ),
    Kernels(
        "implements cpu's overload",
        GOOD + IMPL.format(op="rms_norm.cpu"),
        ((C, ("equal",)), (V, ("equal", "refused")), (C, ("equal", "refused"))),
    ),
    Kernels(
        "overrides cpu's overload",
        GOOD + OVERRIDE,
        ((C, ("equal",)), (V, ("equal", "refused")), (C, ("equal", "refused"))),
    ),
    Kernels(
        "defines cpu's overload first",
        GOOD + DEFINE,
        ((V, ("equal", "refused")), (C, ("equal", "refused"))),
    ),
]
REDEFINERS = [case for case in CASES if "overload" in case.name and "wrong" not in case.name]
TURNS = '''
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch
from tiny_llama import batch, tiny
from vllm_adapter.engine.integrations.transformers import adapt
from vllm_adapter.errors import VllmAdapterError

def operators_apart():
    """How far the operators of docs/operators.md, called as such, are from the formula."""
    packet = torch.ops.vllm_adapter.rms_norm
    calls = [packet] if "UNSEEN_PACKET" in os.environ else []
    calls += [packet.cpu] if "cpu" in packet.overloads() else []
    x, weight = torch.arange(1.0, 9.0).view(2, 4), torch.ones(4)
    right = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return max((float((call(x, weight, 1e-6) - right).abs().max()) for call in calls), default=0)


given = batch(5, 9)
seen = []
for name in sys.argv[1:]:
    model = tiny()
    with torch.no_grad():
        mask = given["attention_mask"].bool()
        plain = model(**given).logits[mask]
        try:
            adapt(model, name)
            apart = float((model(**given).logits[mask] - plain).abs().max())
            apart = max(apart, operators_apart() if name == "cpu" else 0)
            seen.append(["equal" if apart < 1e-4 else "other", apart])
        except VllmAdapterError as error:
            text = str(error)
            seen.append(["refused" if name in text or "villain" in text else "vague", text])
        except BaseException as error:
            own = isinstance(error, ValueError) and "bug" in str(error)
            seen.append(["raised" if own else "WRONG", repr(error)])
print(json.dumps(seen))
'''


def make(case, site):
    """Installs the adapter of a case."""
    folder = package(site, device={"torch_type": "cpu"})
    raw = json.loads(DESCRIPTOR.read_text("utf-8"))
    run = {"run": "vllm_adapter_villain.kernels:rms_norm", "form": case.form}
    raw["operators"]["rms_norm"] |= run
    (folder / "capabilities").mkdir()
    (folder / "capabilities/any.json").write_text(json.dumps(raw), encoding="utf-8")
    (folder / "kernels.py").write_text(case.source, encoding="utf-8")
    dist(site)
