"""Whole models of transformers through the adapter's operators, from weights that were sent."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import transformers

from vllm_adapter.engine.integrations.transformers import adapt, cache_argument, unadapt
from vllm_adapter.errors import VllmAdapterError
from vllm_adapter.settings import Fallback

from .tracing import compiled

if TYPE_CHECKING:
    from vllm_adapter.engine.device_process.held import HeldDevice
    from vllm_adapter.engine.runtime.device_from_clib.backend import Backend

Given = Mapping[str, Any]


def built(given: Given) -> Any:
    """A model on the host: `architecture`, `options` of its configuration, `dtype`, `weights`."""
    kind = getattr(transformers, given["architecture"])
    config = kind.config_class(
        architectures=[given["architecture"]], attn_implementation="sdpa", **given["options"]
    )
    model = kind(config).to(getattr(torch, given["dtype"])).eval()
    model.load_state_dict(given["weights"])
    return model


def decoder_logits(device: HeldDevice, model: Given, inputs: Given, more: Any) -> Given:
    """As `logits`, or why the model is `refused`."""
    return _seen(device, model, lambda mine: {"found": logits(mine, inputs, more)})


def encoder_states(device: HeldDevice, model: Given, inputs: Given) -> Given:
    """As `hidden_states`, or why the model is `refused`."""
    return _seen(device, model, lambda mine: {"found": hidden_states(mine, inputs)})


def tokens(device: HeldDevice, model: Given, inputs: Given, new: int) -> Given:
    """As `greedy`, or why the model is `refused`."""
    return _seen(device, model, lambda mine: {"found": greedy(mine, inputs, new)})


def covered(device: HeldDevice, model: Given, inputs: Given, new: int) -> Given:
    """What a C library's device left to the host while tokens were generated.

    `counts` as the device counts it; `asked`: how often each function was, and did not take the
    work; `has`: whether the library has that function.
    """
    from vllm_adapter.engine.runtime.device_from_clib.enable import enabled

    runtime: Any = device.runtime
    backend = enabled()
    assert backend is not None

    def run(mine: Any) -> Given:
        there = {name: tensor.to(mine.device) for name, tensor in inputs.items()}
        backend.coverage.reset()
        with _refusals(backend) as refused, torch.no_grad():
            _generate(mine, there, new)
        has = {name: bool(runtime.library.has(name)) for name in refused}
        return {"counts": dict(backend.coverage.counts()), "asked": dict(refused), "has": has}

    return _seen(device, model, run)


def block(device: HeldDevice, model: Given, inputs: Given, x: torch.Tensor) -> Given:
    """The first block, compiled (`got`) and eager (`want`), over a prefill; or its `break`.

    x: [rows, columns, hidden].
    """
    from vllm_adapter.engine.integrations.transformers.adapt import adapted_of

    def run(mine: Any) -> Given:
        layer: Any = mine.model.layers[0]
        there = {name: tensor.to(device.device) for name, tensor in inputs.items()}
        found = adapted_of(mine)
        assert found is not None
        cache, step = found.prepare(there["input_ids"], there["attention_mask"])
        hidden = device.to_device(x)
        traced, graphs = compiled(lambda hidden, step: layer(hidden, va_step=step))
        try:
            with torch.no_grad():
                got, want = traced(hidden, step), layer(hidden, va_step=step)
        except torch._dynamo.exc.TorchDynamoException as error:
            return {"break": str(error)}
        finally:
            torch._dynamo.reset()
        del cache
        return {"got": got.cpu(), "want": want.cpu(), "graphs": len(graphs.modules)}

    return _seen(device, model, run)


@torch.no_grad()
def logits(model: Any, given: Given, more: torch.Tensor) -> torch.Tensor:
    """Logits [N, vocabulary] of all real tokens: a prefill, then one token a row and step.

    `more` is [rows, steps]: the tokens are given, so that models that disagree stay comparable.
    """
    device, cache = model.device, cache_argument(model)
    ids, mask = given["input_ids"].to(device), given["attention_mask"].to(device)
    out = model(ids, attention_mask=mask, position_ids=_positions(mask), use_cache=True)
    found = [out.logits.cpu()[mask.cpu().bool()]]
    for token in torch.split(more.to(device), 1, dim=1):
        mask = torch.cat((mask, torch.ones_like(token)), 1)
        out = model(
            token,
            attention_mask=mask,
            position_ids=_positions(mask)[:, -1:],
            use_cache=True,
            **{cache: out[cache]},
        )
        found.append(out.logits[:, -1].cpu())
    return torch.cat(found)


@torch.no_grad()
def hidden_states(model: Any, given: Given) -> torch.Tensor:
    """Hidden states [N, hidden] of all real tokens."""
    there = {name: tensor.to(model.device) for name, tensor in given.items()}
    found: torch.Tensor = model(**there).last_hidden_state
    return found.cpu()[there["attention_mask"].cpu().bool()]


def greedy(model: Any, given: Given, new: int) -> torch.Tensor:
    """Prompts and `new` tokens behind them [rows, columns], on the host."""
    there = {name: tensor.to(model.device) for name, tensor in given.items()}
    return _generate(model, there, new).cpu()


def _generate(model: Any, there: Given, new: int) -> torch.Tensor:
    found: torch.Tensor = model.generate(
        **there, max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return found


def _seen(device: HeldDevice, given: Given, run: Any) -> Given:
    """What `run` gives for the model on the device, through the adapter's operators."""
    model = built(given)
    try:
        adapt(model, device.opened, settings=device.settings)
    except VllmAdapterError as error:
        return {"refused": f"{type(error).__name__}: {error.message}"}
    try:
        with _host_allowed():
            found: Given = run(model)
        return found
    finally:
        unadapt(model)


@contextlib.contextmanager
def _host_allowed() -> Iterator[None]:
    """A C library may leave plain tensor work to the host: `covered` counts that.

    The adapter's operators stay under policy `error`.
    """
    from vllm_adapter.engine.runtime.device_from_clib.enable import enabled

    backend = enabled()
    if backend is None:
        yield
        return
    before, backend.policy = backend.policy, Fallback.ALLOW
    try:
        yield
    finally:
        backend.policy = before


@contextlib.contextmanager
def _refusals(backend: Backend) -> Iterator[Mapping[str, int]]:
    """How often each function of plain tensor work was asked, and did not take the work."""
    refused: Counter[str] = Counter()
    kernels: Any = backend.kernels  # whose method is replaced for the length of the step
    ask = kernels.queue

    def counted(name: str, *arguments: Any) -> bool:
        taken: bool = ask(name, *arguments)
        refused[name] += not taken
        return taken

    kernels.queue = counted
    try:
        yield refused
    finally:
        kernels.queue = ask
        for name in [name for name, count in refused.items() if not count]:
            del refused[name]


def _positions(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(-1) - 1).clamp(min=0)
