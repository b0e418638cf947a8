"""explain, bind and conformance give one answer, and it is the right one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from examples import examples
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

from vllm_adapter.cli.decisions import Question, answers
from vllm_adapter.contract.capability import parse_capability
from vllm_adapter.contract.decision import Accept, decide
from vllm_adapter.contract.operators import DTYPES, OPERATORS
from vllm_adapter.contract.resolve import GENERIC, Provider
from vllm_adapter.engine.ops.bind import bind
from vllm_adapter.engine.ops.providers import PROVIDERS
from vllm_adapter.engine.ops.spec import OpCase
from vllm_adapter.engine.registries import reset
from vllm_adapter.errors import AdapterError, SettingError, UnsupportedCase
from vllm_adapter.settings import Fallback, Settings
from vllm_adapter_conformance.ops import cases as op_cases

pytestmark = pytest.mark.device

OPS = ("rms_norm", "fused_add_rms_norm", "linear", "rotary_embedding", "paged_attention")
SUPPORTS = [None] * 6 + [f"resolver_supports:{name}" for name in ("wide_only", "never", "fails")]
ADAPTERS = {"acme": "device", "other": "device", "kern": "kernels"}


@st.composite
def limits(draw, op):
    """Of some facts a list, or bounds where the fact is a number."""
    found = {}
    for name, fact in OPERATORS[op].facts.items():
        if draw(st.integers(0, 2)):
            continue
        number = not isinstance(fact.samples[0], bool | str)
        if number and draw(st.booleans()):
            values = st.sampled_from([0, 1, 16, 64, 128])
            bounds = draw(st.dictionaries(st.sampled_from(["min", "max"]), values))
            found[name] = bounds or {"multiple_of": draw(st.sampled_from([16, 64]))}
        else:
            found[name] = draw(
                st.lists(st.sampled_from(fact.samples), min_size=1, max_size=3, unique=True)
            )
    return found


@st.composite
def entry(draw, op, number):
    """One entry of a descriptor; core's own functions are what it runs."""
    support = draw(st.sampled_from(["full"] * 4 + ["not_implemented", "unsupported"]))
    dtypes = draw(st.lists(st.sampled_from(DTYPES), min_size=1, unique=True))
    found = {"support": support, "limits": draw(limits(op)), "dtypes": dtypes}
    if support == "full":
        found |= {"run": f"vllm_adapter.engine.ops.generic:{op}", "variant": f"v{number}"}
        supports = draw(st.sampled_from(SUPPORTS))
        found |= {"supports": supports} if supports else {}
        if op == "paged_attention":
            found["plan"] = "vllm_adapter.engine.ops.generic:plan_paged_attention"
    return found


@st.composite
def descriptor(draw, op):
    """Entries for an operator, and for what composes it."""
    names = [name for name in (op, OPERATORS[op].composed_of) if name]
    operators = {}
    for name in names:
        entries = [draw(entry(name, i)) for i in range(draw(st.integers(0, 2)))]
        if entries:
            operators[name] = entries
    raw = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "Acme", "arch": "a1", "torch_type": "cpu"},
        "operators": operators,
    }
    return parse_capability(raw, "acme.json")


@st.composite
def case(draw, op):
    """The dtype and every bind fact; for most of them the usual value, which entries accept."""
    operator = OPERATORS[op]
    facts = {"dtype": draw(st.sampled_from(DTYPES))}
    for name in operator.bind_facts:
        fact = operator.facts[name]
        usual = fact.samples[0] if fact.off is None else fact.off
        facts[name] = draw(st.one_of(st.just(usual), st.sampled_from(fact.samples)))
    return facts


@st.composite
def situations(draw):
    """An operator, the adapters in use in the order of their opening, settings and a case."""
    op = draw(st.sampled_from(OPS))
    opened = draw(st.permutations(list(ADAPTERS)))[: draw(st.integers(1, 3))]
    beside = draw(st.sampled_from([None, None, "acme", "other"]))
    capabilities = {name: draw(descriptor(op)) for name in opened}
    forced = draw(st.sampled_from([None] * 4 + [*ADAPTERS, GENERIC]))
    own = [name for name in opened if ADAPTERS[name] == "device"]
    policy = Settings(
        fallback=draw(st.sampled_from(Fallback)),
        ops={op: forced} if forced else {},
        adapter=draw(st.sampled_from([None, *own])),
    )
    return op, capabilities, beside, policy, draw(case(op))


def providers_of(capabilities, beside=None):
    found = []
    for name, capability in capabilities.items():
        only = ADAPTERS[name] == "kernels"
        provider = Provider.of(name, capability, kernels_only=only)
        found.append(replace(provider, beside=beside) if only else provider)
    return found


def in_use(capabilities, beside=None):
    reset()
    for provider in providers_of(capabilities, beside):
        PROVIDERS.add(provider, "cpu")


def bound(op, facts, policy):
    """(what happened, the picks by step, the refusal's text) by `bind`."""
    try:
        binding = bind(OpCase.of(op, "cpu", facts), policy)
    except UnsupportedCase as error:
        return "refused", {}, error.message
    except SettingError as error:
        return "setting", {}, error.message
    except AdapterError as error:
        return "fault", {}, error.message
    picks = {step: (c.provider, c.entry.pointer) for step, c in binding.picks.items()}
    return "bound", picks, ""


def explained(op, facts, policy, providers):
    """The same by `explain`."""
    question = Question("acme", providers, policy, "cpu")
    try:
        found = question.ask(OPERATORS[op], facts)
    except SettingError as error:
        return "setting", {}, error.message
    except AdapterError as error:
        return "fault", {}, error.message
    if found.refusal is not None:
        return "refused", {}, str(found.refusal.reject)
    picks = {step: (c.provider, c.entry.pointer) for step, c in found.picks.items()}
    return "bound", picks, ""


def right(op, facts, policy, capabilities, beside):
    """What happens and who is picked, by the rules as documents state them, a step at a time."""
    operator, forced = OPERATORS[op], policy.ops.get(op)
    if None not in (policy.adapter, beside) and beside != policy.adapter:
        capabilities = {n: c for n, c in capabilities.items() if n != "kern"}
    if forced not in (None, GENERIC, *capabilities):
        return "setting", {}
    ranked = []
    for rank in ("device", "kernels"):
        for name, capability in capabilities.items():
            others = policy.adapter not in (None, name) and forced != name
            if ADAPTERS[name] != rank or (rank == "device" and others):
                continue
            for part in filter(None, (op, operator.composed_of)):
                ranked += [(name, part, e) for e in capability.operators.get(part, ())]
    picks = {}
    for step in operator.facts["phase"].samples if operator.step_facts else (None,):
        told = facts if step is None else {**facts, "phase": step}
        for name, part, one in ranked:
            if forced in (None, name):
                try:
                    decision = decide(OPERATORS[part], one, told)
                except AdapterError:
                    return "fault", {}
                if isinstance(decision, Accept):
                    picks[step] = (name, one.pointer)
                    break
        else:
            core = forced == GENERIC or (forced is None and policy.fallback is not Fallback.ERROR)
            served = facts.get("kv_dtype", "auto") == "auto"  # all that core's code lacks
            if not (core and served):
                return "refused", {}
            picks[step] = (GENERIC, f"{GENERIC}:/operators/{op}")
    return "bound", picks


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(situations())
def test_explain_and_bind_give_the_right_answer(situation):
    op, capabilities, beside, policy, facts = situation
    in_use(capabilities, beside)
    try:
        by_bind = bound(op, facts, policy)
    finally:
        reset()
    by_explain = explained(op, facts, policy, providers_of(capabilities, beside))
    event(f"{by_bind[0]} by {sorted({name for name, _ in by_bind[1].values()})}")
    note(f"bind: {by_bind}\nexplain: {by_explain}")
    assert by_bind[:2] == by_explain[:2] == right(op, facts, policy, capabilities, beside)
    assert by_explain[2] in by_bind[2]


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_conformance_and_bind_give_one_answer_for_the_adapter_alone(data):
    op = data.draw(st.sampled_from(OPS))
    capability, facts = data.draw(descriptor(op)), data.draw(case(op))
    in_use({"acme": capability})
    try:
        happened, picks, text = bound(op, facts, Settings(fallback=Fallback.ERROR, adapter="acme"))
    finally:
        reset()
    try:
        found = op_cases.resolved(capability, op, facts)
    except AdapterError as error:
        assert (happened, text) == ("fault", error.message)
        return
    mine = {step: ("acme", c.entry.pointer) for step, c in found.picks.items()}
    assert mine == picks
    refused = op_cases.refusal(capability, op, facts)
    assert (happened == "refused") == (refused is not None)
    if refused is not None:
        assert str(refused) in text and refused.pointer in text


def test_the_printed_answer_names_the_picks():
    raw = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "Acme", "arch": "a1"},
        "operators": {
            "paged_attention": {
                "support": "full",
                "dtypes": ["float32"],
                "limits": {"phase": ["decode"]},
                "run": "acme:decode",
            }
        },
    }
    capability = parse_capability(raw, "acme.json")
    operator = OPERATORS["paged_attention"]
    provider, entries = Provider.of("acme", capability), capability.operators["paged_attention"]
    for policy, word in ((Fallback.WARN, "fallback"), (Fallback.ERROR, "reject")):
        question = Question("acme", [provider], Settings(fallback=policy))
        printed = answers(operator, question, entries)[0].as_json()
        assert printed["decision"] == word
        assert "/operators/paged_attention/limits/phase" in printed["why"]
