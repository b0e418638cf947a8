"""`vllm-adapter explain MODEL`: the plan, and who will run each of the model's operators."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm_adapter.cli.output import clean, colour, emit_json

if TYPE_CHECKING:
    from vllm_adapter.cli.decisions import Answer, Question
    from vllm_adapter.planning.box import PlanBox
    from vllm_adapter.planning.model_cases import ModelCase
    from vllm_adapter.planning.plan import ExecutionPlan


def explain(args: argparse.Namespace) -> int:
    """0 if the model fits and every operator has an implementation, else 1."""
    from vllm_adapter.planning.advice import ask_adapter
    from vllm_adapter.planning.demand import demand_of
    from vllm_adapter.planning.model_cases import model_cases
    from vllm_adapter.planning.plan import make_plan
    from vllm_adapter.planning.profiles import box_of_profile
    from vllm_adapter.planning.render import head, reasons
    from vllm_adapter.planning.sources import box_of_machine
    from vllm_adapter.planning.workload import Workload

    demand = demand_of(args.key)
    profile = args.device_profile
    box = box_of_profile(profile) if profile is not None else box_of_machine(args.report)
    plan = make_plan(demand, box, Workload(), ask_adapter(demand, box))
    cases, outside = model_cases(plan)
    question = _question(box)
    answered = [(case, _answer(question, case)) for case in cases]
    if args.json:
        emit_json(
            {
                "plan": plan.to_json(),
                "asked": [one.name for one in question.providers],
                "operators": [
                    {"operator": case.operator, "of": case.of, **answer.as_json()}
                    for case, answer in answered
                ],
                "outside": [{"of": one.of, "why": one.why} for one in outside],
            }
        )
    else:
        _print(plan, (*head(plan), "", *reasons(plan)))
        _print_operators(question, answered)
        for one in outside:
            print(clean(f"{one.of}: vLLM's own code, {one.why}"))
    refused = any(answer.word == "reject" for _, answer in answered)
    return 1 if refused or not plan.fits else 0


def _question(box: PlanBox) -> Question:
    """Who is asked: as `bind` would on that device, if the adapter is installed; else it alone."""
    from vllm_adapter.cli.decisions import Question
    from vllm_adapter.cli.questions import Subject, questions
    from vllm_adapter.contract.resolve import Provider
    from vllm_adapter.settings import Settings

    settings = Settings.from_environ()
    record: Any = box.record
    if record is None or record.manifest is None:
        return Question(box.adapter, [Provider.of(box.adapter, box.capability)], settings)
    subject = Subject(record.manifest, record)
    return next(found for _, found in questions(subject, box.capability, settings))


def _answer(question: Question, case: ModelCase) -> Answer:
    from vllm_adapter.cli.decisions import Answer
    from vllm_adapter.contract.operators import operator

    found = question.ask(operator(case.operator), case.facts)
    return Answer(question.adapter, case.facts, case.of, found)


def _print(plan: ExecutionPlan, lines: Iterable[str]) -> None:
    for line in lines:
        print(clean(line))


def _print_operators(question: Question, answered: list[tuple[ModelCase, Answer]]) -> None:
    from vllm_adapter.cli.decisions import case_text
    from vllm_adapter.contract.decision import Reject
    from vllm_adapter.contract.resolve import RANKS

    ranked = ", ".join(one.name for one in question.providers)
    policy = f"core's portable code (VA_FALLBACK={question.settings.fallback.value})"
    print()
    print(clean(f"operators on {question.adapter}; asked, best rank first: {ranked}, {policy}"))
    for case, answer in answered:
        facts = {name: value for name, value in case.facts.items() if name != "dtype"}
        print(clean(f"{case.operator} ({case.of}): {case.facts['dtype']} {case_text(facts)}"))
        good = "red" if answer.word == "reject" else "green"
        picks = answer.resolution.winners
        runs = ", ".join(one.entry.run or "" for one in picks) or answer.why
        print(f"  {colour('runs' if picks else 'refused', good)}: {clean(runs)}")
        for one in picks:
            print(clean(f"    {one.provider} {one.entry.pointer}: {RANKS[one.rank]}"))
        for verdict in answer.resolution.verdicts:
            candidate = verdict.candidate
            if candidate in picks:
                continue
            if isinstance(verdict.decision, Reject):
                why = str(verdict.decision)
            else:
                why = f"accepts, behind {picks[0].provider if picks else 'nobody'}"
            print(clean(f"  not {candidate.provider} {candidate.entry.pointer}: {why}"))
