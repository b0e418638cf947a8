"""`vllm-adapter devices`: the devices of a box, which would be used, and why not the others."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vllm_adapter.cli.output import clean, colour, emit_json, table
from vllm_adapter_doctor.cli.report_option import add_report, host_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_adapter_doctor.devices.device_decisions import DeviceDecisions
    from vllm_adapter_doctor.devices.manager import DeviceCandidate, DeviceChoice, DeviceManager
    from vllm_adapter_doctor.devices.roles import Role

HELP: Final = "show the devices of this box or of a report, which are used, and why not the others"
EXAMPLE: Final = """\
example:
  vllm-adapter devices                          this machine
  nvidia-smi | vllm-adapter devices --report -  another machine, from what its tools print
  vllm-adapter devices --role main=cuda:0,1 --role light=xpu:0
  vllm-adapter devices --dtype float8_e4m3fn --weight-bytes 8000000000
                                                what the driver and chip allow, and what a
                                                downgrade costs in bytes

A role is a process of its own: the variables that it needs are printed. The CPU is used by policy
alone (VA_FALLBACK=error | warn | allow).

exit code: 0 if a device was chosen, or the CPU under VA_FALLBACK=allow; 1 if nothing, or only the
CPU, is left; with --role 0 if each device named can be used, else 1; 2 for bad input
"""
_HEADERS: Final = ("DEVICE", "NAME", "ARCH", "MEMORY", "BUS", "NUMA", "STATUS")
_GIB: Final = 1 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_report(parser)
    parser.add_argument(
        "--role",
        action="append",
        default=[],
        metavar="NAME=ADAPTER:N[,N]",
        help="devices for a role, such as main=cuda:0 or light=cpu; may be given more than once",
    )
    parser.add_argument(
        "--dtype",
        action="append",
        default=[],
        metavar="DTYPE",
        help="a dtype that is wanted, such as float8_e4m3fn; may be given more than once",
    )
    for name, what in (("weight", "the weights"), ("kv", "the KV cache")):
        parser.add_argument(
            f"--{name}-bytes",
            type=int,
            default=0,
            metavar="BYTES",
            help=f"the size of {what} in the wanted dtype, to see it after a downgrade",
        )


def run(args: argparse.Namespace) -> int:
    """Prints the devices, the choice and the roles; see EXAMPLE for the exit code."""
    from vllm_adapter.errors import InputError
    from vllm_adapter_doctor.devices.device_decisions import decisions_of_devices
    from vllm_adapter_doctor.devices.roles import assign, parse_role

    sizes = {"weights": args.weight_bytes, "kv": args.kv_bytes}
    if min(sizes.values()) < 0:
        raise InputError("a size in bytes is negative", hint="give --weight-bytes 8000000000")
    if any(sizes.values()) and not args.dtype:
        raise InputError(
            "a size is given, and no dtype that it is of",
            hint="add the wanted dtype, such as --dtype float8_e4m3fn",
        )
    requests = [parse_role(text) for text in args.role]
    manager = device_manager(args)
    candidates, choice = manager.candidates(), manager.choose()
    roles = assign(manager, requests)
    chosen = [one for role in roles for one in role.candidates] or choice.chosen
    known = decisions_of_devices(
        manager, chosen, args.dtype, weight_bytes=args.weight_bytes, kv_bytes=args.kv_bytes
    )
    if args.json:
        emit_json(
            {
                "devices": [one.to_json() for one in candidates],
                "choice": choice.to_json(),
                "roles": [role.to_json() for role in roles],
                "terms": [one.to_json(sizes) for one in known],
            }
        )
    else:
        _print(candidates, choice, manager.live)
        _print_roles(roles)
        _print_terms(known)
    if roles:
        return 1 if any(role.faults for role in roles) else 0
    return 0 if choice.good else 1


def device_manager(args: argparse.Namespace, image: str | None = None) -> DeviceManager:
    """The manager for `args.report`, or for this machine; with an image, for a container of it.

    Raises:
        InputError: the report, or a VA_* variable, cannot be read.
    """
    from vllm_adapter.discovery import registry
    from vllm_adapter.settings import Settings
    from vllm_adapter_doctor.findings.device_stops import device_manager as managed

    settings = Settings.from_environ()
    records = registry.scan(settings)
    live = args.report is None
    facts = host_facts(args)
    if live:
        records = registry.with_cached_probes(registry.located(records, facts), facts)
    if image is None:
        return managed(facts, settings, records, live)
    from vllm_adapter_doctor.containers.image import facts_inside

    inside = facts_inside(facts, image, live=live)
    return replace(managed(inside, settings, records, live), outside=True)


def _print(candidates: tuple[DeviceCandidate, ...], choice: DeviceChoice, live: bool) -> None:
    if candidates:
        chosen = {one.device.id for one in choice.chosen}
        print(table([_row(one, chosen) for one in candidates], _HEADERS), end="")
    good = "green" if choice.good else "yellow"
    print(f"{colour('chosen:', good)} {clean(choice.sentence)}")
    if choice.chosen and not live:
        vendor = choice.chosen[0]
        print(f"  adapter {vendor.device.vendor}, here: {clean(vendor.adapter)}")
    for one in choice.chosen:
        for sentence in one.warnings:
            print(f"  {clean(one.device.id)}: {clean(sentence)}")
    for one in choice.rejected:
        for number, refusal in enumerate(one.refusals):
            head = (
                f"{clean(one.device.id)} {colour('not used', 'yellow')}" if not number else " and"
            )
            code = f" [{refusal.code}]" if refusal.code else ""
            print(f"{head}: {clean(refusal.reason)}{code}")
            if refusal.next_step:
                print(f"  next: {clean(refusal.next_step)}")
    for note in choice.notes:
        print(f"note: {clean(note)}")


def _row(one: DeviceCandidate, chosen: set[str]) -> tuple[str | int | None, ...]:
    device = one.device
    memory = device.memory_total_bytes
    size = f"{memory / _GIB:.0f} GiB" if memory else None
    if device.system_memory:
        size = f"{size} system" if size else "system"
    state = "chosen" if device.id in chosen else "left" if one.usable else "not used"
    part = f" {device.partition}" if device.partition else ""
    die = f" die {device.die}" if device.die and not part else ""
    title = f"{device.title}{part}{die}"
    return device.id, title, device.arch, size, device.bdf, device.numa_node, state


def _print_roles(roles: tuple[Role, ...]) -> None:
    for role in roles:
        names = ", ".join(f"{c.device.id} ({c.device.title})" for c in role.candidates) or "cpu"
        print(f"\nrole {clean(role.name)}: {clean(names)}")
        if role.environment.unset:
            print(f"  unset {' '.join(role.environment.unset)}")
        for name, value in role.environment.variables:
            print(f"  export {name}={shlex.quote(value)}")
        for note in role.environment.notes:
            print(f"  note: {clean(note)}")
        for fault in role.faults:
            print(f"  {colour('cannot be used', 'red')}: {clean(fault)}")


def _print_terms(known: Sequence[DeviceDecisions]) -> None:
    """Devices with the same terms share their lines."""
    shared: dict[tuple[object, ...], list[str]] = {}
    for one in known:
        shared.setdefault((one.arch, one.decisions, one.advice), []).append(one.device)
    first = {one.device: one for one in known}
    for devices in shared.values():
        one = first[devices[0]]
        if not (one.decisions or one.advice):
            continue
        print(f"\n{clean(', '.join(devices))}, by the descriptor of {clean(one.arch)}")
        for decision, cost in one.decisions:
            bad = decision.outcome.value in ("refuse", "downgrade")
            mark = colour(decision.outcome.value, "yellow" if bad else "dim")
            print(f"  {mark}: {clean(decision.message)}" + (f"; {clean(cost)}" if cost else ""))
        for sentence in one.advice:
            print(f"  advice: {clean(sentence)}")
