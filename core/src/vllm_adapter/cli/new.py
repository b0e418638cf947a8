"""`vllm-adapter new`: an adapter project of one's own, from the template."""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from pathlib import Path
from typing import Any, Final

from vllm_adapter.cli.output import clean, emit_json
from vllm_adapter.contract.manifest import RESERVED_NAMES, check_name, check_torch_names
from vllm_adapter.errors import InputError
from vllm_adapter.files import shown

HELP: Final = "write a new adapter project: manifest, descriptor and kernels"
EXAMPLE: Final = """\
example:
  vllm-adapter new Acme        writes vllm-adapter-acme, which runs on the CPU until the chip does
"""
_UNFIT: Final = '"\\{}'
"""Characters of a vendor that JSON or the template would give a meaning."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "vendor",
        metavar="VENDOR",
        help="the vendor, as people read it; the adapter's name is this in lower case, with _ "
        "for all but letters and digits",
    )
    parser.add_argument(
        "--kind",
        choices=("torch",),
        default="torch",
        help="how the chip is reached: as a device type that torch knows (the default)",
    )
    parser.add_argument(
        "--output", metavar="DIR", default=".", help="the folder to write the project in"
    )


def run(args: argparse.Namespace) -> int:
    """Writes the whole project or nothing, and never into a folder that is there; 0."""
    answers = _answers(args.vendor, args.kind)
    name = str(answers["__name"])
    _refuse_taken(name, str(answers["__project"]))
    project = Path(args.output) / str(answers["__project"])
    if os.path.lexists(project):
        raise InputError(
            f"{project} is there already", hint="remove it, or choose another folder with --output"
        )
    try:
        files = _write(answers, project)
    except OSError as error:
        raise InputError(
            f"cannot write {project}: {error.strerror or error}",
            hint="choose a folder that can be written with --output",
        ) from error
    steps = [
        f"pip install -e {shlex.quote(str(project))}",
        "vllm-adapter list --probe",
        f"vllm-adapter certify {name} --level L2",
    ]
    if args.json:
        emit_json({"name": name, "project": str(project), "files": files, "next_steps": steps})
        return 0
    print(f"wrote {clean(project)}: {', '.join(files)}\nnext:")
    for step in steps:
        print(f"  {clean(step)}")
    return 0


def _answers(vendor: str, kind: str) -> dict[str, Any]:
    """The template's variables, rendered.

    Raises:
        InputError: cookiecutter or the template is not installed, or the vendor makes no name.
    """
    if not vendor.isprintable() or any(character in vendor for character in _UNFIT):
        raise InputError(
            f'the vendor {shown(vendor)} holds one of " \\ {{ }} or a control character',
            hint="leave it out here; the manifest's `vendor` can be changed afterwards",
        )
    try:
        from cookiecutter.generate import generate_context
        from cookiecutter.prompt import prompt_for_config

        from vllm_adapter_template import path
    except ImportError as error:
        raise InputError(
            f"this command needs {(error.name or '').partition('.')[0]}, which is not installed",
            hint="pip install 'vllm-adapter-core[new]'",
        ) from error
    context = generate_context(
        str(path() / "cookiecutter.json"), extra_context={"vendor": vendor, "kind": kind}
    )
    answers: dict[str, Any] = prompt_for_config(context, no_input=True)
    name = answers["__name"]
    fault = check_name(name) or _torchs_own(name, answers["torch_type"])
    if fault:
        raise InputError(
            f"the adapter's name, made of the vendor {shown(vendor)}, {fault}",
            hint="write the vendor so that it gives a name, such as Acme; the manifest's "
            "`vendor` can be changed afterwards",
        )
    return answers


def _torchs_own(name: str, torch_type: str) -> str | None:
    faults = check_torch_names({"name": name, "device": {"torch_type": torch_type}})
    return faults[0].removeprefix("/name ") if faults else None


def _refuse_taken(name: str, project: str) -> None:
    """A second adapter of one name, or distribution of one name, would replace the first."""
    from vllm_adapter.discovery.registry import scan
    from vllm_adapter.settings import Settings

    reserved = {f"vllm-adapter-{word}" for word in RESERVED_NAMES}
    taken = next(
        (r for r in scan(Settings()) if name == r.name or project == r.distribution), None
    )
    if taken is None and project not in reserved:
        return
    why = f"{taken.distribution} is installed" if taken else "the name is vllm-adapter's own"
    raise InputError(
        f"the project would be {project}, with an adapter {name}, and {why}",
        hint=f"choose another vendor, or `pip uninstall {taken.distribution}` first"
        if taken
        else "choose another vendor",
    )


def _write(answers: dict[str, Any], project: Path) -> list[str]:
    """Generates the project beside its place and moves it there; gives its files."""
    from cookiecutter.generate import generate_files

    from vllm_adapter_template import path

    project.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=project.parent) as draft:
        # The hook is for those who run cookiecutter itself; `_answers` has made its checks.
        made = Path(
            generate_files(str(path()), {"cookiecutter": answers}, draft, accept_hooks=False)
        )
        files = sorted(str(f.relative_to(made)) for f in made.rglob("*") if f.is_file())
        made.rename(project)
    return files
