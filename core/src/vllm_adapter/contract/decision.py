"""Who may run a case, and why not: decisions are data, recorded first and filtered after."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from vllm_adapter.contract.manifest import Dotted
from vllm_adapter.contract.operators import Dtype, FactValue, Operator
from vllm_adapter.contract.reading import LEFT_OUT, OURS, SOME, Text, form
from vllm_adapter.errors import AdapterError

_Variant = Annotated[str, form("[a-z0-9][a-z0-9_]*", "lower-case letters, digits and _")]
Rule = tuple[FactValue, ...] | Mapping[str, float]
"""What `limits` says of one fact: one of these values, or bounds (min, max, multiple_of)."""

UNCONCERNED = "this entry does not concern the case"
LIBRARY = "library:"
"""What `run` begins with where a function of the adapter's C library runs the operator."""


class OperatorEntry(Struct, frozen=True):
    """One declaration of coverage."""

    support: Literal["full", "versioned", "not_implemented", "unsupported", "unknown"]
    """full: declared; versioned: declared from first_version on; not_implemented: not yet;
    unsupported: the chip cannot; unknown: nobody said. The last three declare nothing and give the
    reason for the cases that their dtypes and limits name."""
    pointer: Annotated[str, OURS] = ""
    dtypes: Annotated[tuple[Dtype, ...], SOME, Meta(extra_json_schema={"uniqueItems": True})] = ()
    """Dtypes that are declared; none means any, for an entry that declares nothing."""
    limits: Mapping[str, Rule] = {}
    """What is declared of each fact of the operator. A feature fact that is not named here
    declares only its off value; a size fact declares any."""
    form: Literal["kernel", "torch"] = "kernel"
    """kernel: runs behind its overload, opaque to torch.compile; torch: plain and traceable.
    Default kernel."""
    run: Annotated[
        Dotted | None, LEFT_OUT, Meta(examples=["vllm_adapter_acme.kernels:rms_norm"])
    ] = None
    """module:function that runs the operator; library:OPERATOR for the function of that name of
    the device's C library."""
    plan: Annotated[Dotted | None, LEFT_OUT] = None
    """module:function that is called once a step, outside the graph, by planned operators."""
    prepare_weights: Annotated[Dotted | None, LEFT_OUT] = None
    """module:function that is called once a load and may pack the weights."""
    supports: Annotated[Dotted | None, LEFT_OUT] = None
    """module:function, free of torch, for what limits cannot say: it gets the facts of a case that
    the entry accepts otherwise, and returns why not, as a sentence, or null."""
    tune: Annotated[Dotted | None, LEFT_OUT] = None
    """module:function that gives `vllm-adapter tune` what the kernel leaves to choose: it gets
    (device, dtype, capability) and returns `TuneCase` objects."""
    variant: Annotated[_Variant | None, LEFT_OUT] = None
    """Suffix of the overload's name, where one operator has several entries with kernels of their
    own."""
    first_version: Annotated[Text | None, LEFT_OUT] = None
    """First version of the driver or of the vendor's software that has it; needed by versioned."""

    def __post_init__(self) -> None:
        if len(set(self.dtypes)) < len(self.dtypes):
            raise ValueError("/dtypes must hold no dtype twice")

    @property
    def declares(self) -> bool:
        """Whether the entry can accept a case at all."""
        return self.support in ("full", "versioned")

    @property
    def library_function(self) -> str | None:
        """The function of the adapter's C library that runs it; None: `run` is Python's."""
        run = self.run
        return run.removeprefix(LIBRARY) if run is not None and run.startswith(LIBRARY) else None


def library_fault(op: str, run: str, plan: str | None, library: str | None) -> str | None:
    """Why a `run` that names a library's function cannot run an operator; None where it can.

    `plan` is the entry's, `library` the manifest's.
    """
    if library is None:
        return "the manifest's device names no library"
    if run != LIBRARY + op:
        return f"a library's function runs the operator of its own name: {LIBRARY}{op}"
    return None if plan is None else "core plans the steps of a library; leave out plan"


@dataclass(frozen=True, slots=True)
class Accept:
    """The entry runs the case; `when` gives, for each step fact, the values it accepts."""

    pointer: str
    when: Mapping[str, tuple[FactValue, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reject:
    """The entry does not run the case: `got` was seen where `need` is declared."""

    reason: str
    pointer: str
    got: Any
    need: Any

    def __str__(self) -> str:
        return f"{self.reason} ({self.pointer}: got {self.got!r}, need {self.need!r})"


Decision = Accept | Reject


def library_refusal(
    entry: OperatorEntry, op: str, library: str, has: Callable[[str], bool] | None
) -> Reject | None:
    """Why a C library does not run an entry of `op` that names its function; else None.

    `library` is its file's name, `has` says which functions its table holds; None: it cannot be
    used.
    """
    name, run = entry.library_function, entry.run
    if name is None or run is None:
        return None
    at_run = f"{entry.pointer}/run"
    if has is None:
        return Reject("no C library is open", at_run, run, "a device with a library")
    fault = library_fault(op, run, entry.plan, library)
    if fault is not None:
        return Reject(fault, at_run, run, LIBRARY + op)
    if not has(name):
        return Reject(f"{library} leaves the function {name} NULL", at_run, "NULL", "a function")
    return None


def holds(rule: Rule, got: FactValue) -> bool:
    """Whether a value keeps a rule: one of a tuple, or all of min, max and multiple_of."""
    if isinstance(rule, tuple):
        return any(
            got == want and isinstance(got, bool) == isinstance(want, bool) for want in rule
        )
    if isinstance(got, (bool, str)):
        return not rule  # bounds say nothing of a word; no bound admits any
    tests = {
        "min": lambda bound: got >= bound,
        "max": lambda bound: got <= bound,
        "multiple_of": lambda bound: got % bound == 0,
    }
    return all(tests[word](bound) for word, bound in rule.items())


def decide(operator: Operator, entry: OperatorEntry, facts: Mapping[str, FactValue]) -> Decision:
    """What one descriptor entry says of a case.

    `facts` holds the dtype under "dtype" and every bind fact. A step fact may be given too, and
    then has to hold; where it is missing, the accepted values are returned in `Accept.when`.
    """
    if not entry.declares:
        return _refusal(operator, entry, facts)
    if facts["dtype"] not in entry.dtypes:
        return Reject(
            "dtype not declared", f"{entry.pointer}/dtypes", facts["dtype"], list(entry.dtypes)
        )
    when: dict[str, tuple[FactValue, ...]] = {}
    for name, fact in operator.facts.items():
        rule = entry.limits.get(name, {} if fact.off is None else (fact.off,))
        pointer = f"{entry.pointer}/limits/{name}"
        if fact.step and name not in facts:
            when[name] = tuple(value for value in fact.samples if holds(rule, value))
            if not when[name]:
                return Reject(f"no {name} is declared", pointer, None, _plain(rule))
        elif not holds(rule, facts[name]):
            return Reject(f"{name} outside its limits", pointer, facts[name], _plain(rule))
    why = _asked(entry, facts)
    if why is not None:
        return Reject(why, f"{entry.pointer}/supports", dict(facts), entry.supports)
    return Accept(entry.pointer, when)


def headline(decisions: Sequence[Decision]) -> Reject | None:
    """The refusal that says most: a support word that names the case, before a broken limit."""
    rejects = [d for d in decisions if isinstance(d, Reject)]
    named = [d for d in rejects if d.pointer.endswith("/support") and d.reason != UNCONCERNED]
    others = [d for d in rejects if d.reason != UNCONCERNED]
    return next(iter(named or others or rejects), None)


def _asked(entry: OperatorEntry, facts: Mapping[str, FactValue]) -> str | None:
    """Why the entry's own `supports(facts)` refuses; None where it accepts or there is none."""
    if entry.supports is None:
        return None
    module, _, name = entry.supports.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        why = found(dict(facts))
    except Exception as error:
        raise AdapterError(
            f"{entry.supports}, named by {entry.pointer}/supports, failed: "
            f"{type(error).__name__}: {error}",
            hint="it takes the facts of a case, and returns a sentence or None",
        ) from error
    return None if why is None else str(why)


def _refusal(operator: Operator, entry: OperatorEntry, facts: Mapping[str, FactValue]) -> Reject:
    """An entry that declares nothing supplies the reason for the cases that its limits name."""
    pointer = f"{entry.pointer}/support"
    concerned = (not entry.dtypes or facts["dtype"] in entry.dtypes) and all(
        name not in facts or holds(rule, facts[name]) for name, rule in entry.limits.items()
    )
    if not concerned:
        return Reject(UNCONCERNED, pointer, entry.support, "full")
    named = ", ".join(
        f"{name} = {facts[name]!r}" if name in facts else f"{name} in {_plain(rule)!r}"
        for name, rule in entry.limits.items()
    )
    what = f"{operator.name} with {named}" if named else operator.name
    return Reject(f"{what} is declared {entry.support}", pointer, entry.support, "full")


def _plain(rule: Rule) -> Any:
    return list(rule) if isinstance(rule, tuple) else dict(rule)
