"""`vllm-adapter explain`: the page of a code or rule, or an adapter's decisions."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_adapter.cli.explain_page import find_page
from vllm_adapter.cli.output import clean, colour, emit_json, table, warn
from vllm_adapter.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_adapter.cli.decisions import Answer, Question
    from vllm_adapter.cli.questions import Subject
    from vllm_adapter.contract.capability import Capability
    from vllm_adapter.contract.operators import Operator
    from vllm_adapter.settings import Settings

HELP: Final = "explain a code or rule, an adapter's decisions, or who runs a model's operators"
EXAMPLE: Final = """\
example:
  vllm-adapter explain VA3001
  vllm-adapter explain cpu paged_attention
  vllm-adapter explain cpu --diff my.json
  vllm-adapter explain ./Llama-3-8B --device-profile mi300x    the plan, and who runs what there

With a model the exit code is 1 if it does not fit, or an operator of it has no implementation.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "key",
        metavar="KEY",
        help="a code (VA3001), a level (L2), a rule (L2.rms_norm.correct), the name of an "
        "installed adapter, a package folder, or a model (folder, config.json, .gguf)",
    )
    parser.add_argument("operator", metavar="OP", nargs="?", help="one operator of the adapter")
    parser.add_argument(
        "--diff",
        metavar="FILE",
        help="name the decisions that change when FILE replaces the descriptor of its arch",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--report", metavar="FILE", help="of a model: on another machine")
    where.add_argument(
        "--device-profile", metavar="NAME[:N]", help="of a model: on N devices of a descriptor"
    )


def run(args: argparse.Namespace) -> int:
    """0 if there is something to explain, and nothing of it is bad news."""
    if _is_model(args.key):
        from vllm_adapter.cli.explain_model import explain

        if args.operator is not None or args.diff is not None:
            raise InputError(
                f"{args.key} is a model, and takes no operator and no --diff",
                hint=f"vllm-adapter plan {args.key} --diff A B names the lines that change",
            )
        return explain(args)
    if args.report is not None or args.device_profile is not None:
        raise InputError(
            f"{args.key} is no model, and takes no --report and no --device-profile",
            hint="they say where a model is to run",
        )
    page = find_page(args.key)
    if page is None:
        return _adapter(args)
    if args.operator is not None or args.diff is not None:
        raise InputError(
            f"{args.key} is a page, and takes no operator and no --diff",
            hint=f"vllm-adapter explain {args.key}",
        )
    if args.json:
        emit_json({"key": args.key, "page": page})
    else:
        print(page.rstrip())
    return 0


def _is_model(key: str) -> bool:
    """Whether a key names a model: a folder with one, its config.json, a .gguf, package:NAME."""
    if key.startswith("package:") or key.endswith((".gguf", "config.json")):
        return True
    path = Path(key)
    try:
        inside = (path / "config.json").exists() or any(path.glob("*.gguf"))
        return path.is_dir() and inside and not (path / "adapter.json").exists()
    except (OSError, ValueError):
        return False


def _some_adapter() -> str:
    """An installed adapter as an example, the CPU's if it is there."""
    from vllm_adapter.discovery.registry import scan
    from vllm_adapter.settings import Settings

    names = [record.name for record in scan(Settings())]
    return "cpu" if "cpu" in names or not names else names[0]


def _adapter(args: argparse.Namespace) -> int:
    from vllm_adapter.cli.decisions import answers, entries_for
    from vllm_adapter.contract.operators import OPERATORS, operator
    from vllm_adapter.settings import Settings

    operators = [operator(args.operator)] if args.operator else list(OPERATORS.values())
    if args.key in OPERATORS and not args.operator and not _is_adapter(args.key):
        raise InputError(
            f"{args.key} is an operator, which adapters decide on",
            hint=f"name one of them: vllm-adapter explain {_some_adapter()} {args.key}",
        )
    settings = Settings.from_environ()
    subject, capabilities = _subject(args.key, settings)
    if args.diff is not None:
        return _diff(args, subject, capabilities, operators, settings)
    from vllm_adapter.cli.questions import questions

    document = []
    for capability in capabilities:
        for place, question in questions(subject, capability, settings):
            found = {
                op.name: answers(op, question, entries_for(op, capability)) for op in operators
            }
            if args.json:
                document.append(
                    {
                        "descriptor": capability.origin,
                        "arch": capability.identity.arch,
                        "device": place or None,
                        "asked": [one.name for one in question.providers],
                        "fallback": settings.fallback.value,
                        "operators": {n: [v.as_json() for v in vs] for n, vs in found.items()},
                    }
                )
            else:
                _print(capability, place, question, found)
    if args.json:
        emit_json({"descriptors": document})
    return 0


def _print(
    capability: Capability, place: str, question: Question, found: Mapping[str, Sequence[Answer]]
) -> None:
    from vllm_adapter.cli.decisions import case_text, entry_line
    from vllm_adapter.contract.operators import OPERATORS

    title = "  ".join(filter(None, (capability.identity.arch, clean(capability.origin), place)))
    print(colour(title, "bold"))
    policy = f"core's portable code (VA_FALLBACK={question.settings.fallback.value})"
    ranked = ", ".join([*(p.name for p in question.providers), policy])
    ops = ", ".join(f"VA_OPS={op}:{name}" for op, name in question.settings.ops.items())
    print(f"candidates, best rank first: {ranked}{f'; {ops}' if ops else ''}")
    for name, cases in found.items():
        op = OPERATORS[name]
        entries = capability.operators.get(op.name, ())
        print(f"\n{op.name}: {op.summary}")
        for entry in entries:
            print(f"  {clean(entry_line(entry))}")
        if not entries:
            helper = op.composed_of
            ours = f"; composed of {helper}" if helper in capability.operators else ""
            print(f"  not declared{ours}")
        print(f"  the usual case: {case_text(cases[0].case)}")
        rows = [(case.label, case.word, case.why) for case in cases]
        print(textwrap.indent(table(rows, ("CASE", "DECISION", "WHY")), "  "), end="")
    print()


def _diff(
    args: argparse.Namespace,
    subject: Subject,
    capabilities: Sequence[Capability],
    operators: Sequence[Operator],
    settings: Settings,
) -> int:
    from vllm_adapter.cli.decisions import answers, case_text, changes, entries_for
    from vllm_adapter.cli.questions import questions
    from vllm_adapter.contract.capability import load_capability

    new = load_capability(Path(args.diff))
    old = _same_arch(capabilities, new, args.key)
    before, after = (
        (next(question for _, question in questions(subject, one, settings)), one)
        for one in (old, new)
    )
    changed = {op.name: found for op in operators if (found := changes(op, before, after))}
    if args.json:
        emit_json(
            {
                "old": old.origin,
                "new": new.origin,
                "changes": [
                    {"operator": name, "old": c.old.as_json(), "new": c.new.as_json()}
                    for name, found in changed.items()
                    for c in found
                ],
            }
        )
        return 0
    print(f"old: {clean(old.origin)}\nnew: {clean(new.origin)}")
    if not changed:
        print("no decision changes")
    for op in operators:
        if op.name in changed:
            usual = answers(op, before[0], entries_for(op, old))[0].case
            print(f"\n{op.name}; the usual case: {case_text(usual)}")
            rows = [(c.old.label, c.old.summary, c.new.summary) for c in changed[op.name]]
            print(textwrap.indent(table(rows, ("CASE", "OLD", "NEW")), "  "), end="")
    return 0


def _same_arch(found: Sequence[Capability], new: Capability, name: str) -> Capability:
    """The descriptor that `new` would replace: the only one, or the one of its arch."""
    same = [c for c in found if c.identity.arch == new.identity.arch] or list(found)
    if len(same) == 1:
        return same[0]
    raise InputError(
        f"{name} has no descriptor of arch {new.identity.arch}, which {new.origin} is for",
        hint=f"its arches: {', '.join(sorted(c.identity.arch for c in found))}",
    )


def _subject(key: str, settings: Settings) -> tuple[Subject, list[Capability]]:
    """An adapter and its descriptors, or the one that VA_CAPABILITY puts in their place."""
    from vllm_adapter.cli.packages import manifest_in, resolve
    from vllm_adapter.cli.questions import Subject
    from vllm_adapter.contract.capability import load_capability
    from vllm_adapter.contract.manifest import read_manifest

    folder = _folder(resolve(key))
    manifest = read_manifest(manifest_in(folder))
    subject = Subject.at(folder, manifest)
    blocked = settings.adapters.blocks(key)
    if blocked:
        warn(f"{key} is not used: {blocked}")
    replacement = settings.capability
    if replacement is not None:
        warn(f"VA_CAPABILITY replaces the descriptors of {key}")
        return subject, [load_capability(replacement)]
    files = manifest.capability_files()
    if not files:
        raise InputError(
            f"{manifest.path} names no capability descriptor ({manifest.capabilities})",
            hint="an adapter declares what it can do in its capabilities folder",
        )
    return subject, [load_capability(file) for file in files]


def _is_adapter(key: str) -> bool:
    from vllm_adapter.discovery.registry import scan
    from vllm_adapter.settings import Settings

    return Path(key).exists() or any(record.name == key for record in scan(Settings()))


def _folder(path: Path) -> Path:
    if path.is_dir():
        return path
    raise InputError(
        f"{path} is a file, not an adapter", hint="give the package folder, or the adapter's name"
    )
