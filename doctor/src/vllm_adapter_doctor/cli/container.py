"""`vllm-adapter container`: how a container is started so that this box's devices work inside."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.cli.output import clean, emit_json, warn
from vllm_adapter_doctor.cli.report_option import add_report

if TYPE_CHECKING:
    from vllm_adapter_doctor.containers.flags import DeviceRequest, Flag
    from vllm_adapter_doctor.devices.manager import DeviceChoice, DeviceManager

HELP: Final = "print the run flags that a container needs for the devices found, and why"
EXAMPLE: Final = """\
example:
  vllm-adapter container                                 docker, for this machine
  npu-smi info | vllm-adapter container --report - --engine k8s
  vllm-adapter container --role main=cuda:0 --image vllm/vllm-openai:latest

No image is built or run. A flag without a source is marked as an assumption.

exit code: 0 if there is a recipe for a chosen device, or for the CPU under VA_FALLBACK=allow;
1 if nothing, or only the CPU, is left, or a device of --role cannot be used; 2 for bad input, or
no known recipe
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_report(parser)
    parser.add_argument(
        "--engine", choices=("docker", "podman", "k8s"), default="docker", help="default: docker"
    )
    parser.add_argument(
        "--image",
        default="IMAGE",
        help="the image's name, for the command line; what it says of CUDA decides, too",
    )
    parser.add_argument(
        "--role", metavar="NAME=ADAPTER:N[,N]", help="these devices, instead of the choice"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the command, or the pod; see EXAMPLE for the exit code."""
    from vllm_adapter_doctor.cli.devices import device_manager
    from vllm_adapter_doctor.devices.roles import assign, parse_role

    request = parse_role(args.role) if args.role is not None else None
    manager = device_manager(args, args.image)
    choice = manager.choose()
    if request is not None:
        (role,) = assign(manager, [request])
        devices = tuple(one.device for one in role.candidates)
        order = _order(manager, role.adapter, devices)
        for fault in role.faults:
            warn(fault)
        if role.faults:
            return _nothing(choice, manager, args.json)
    elif choice.chosen:
        first = choice.chosen[0].device.vendor
        order = _order(manager, first, tuple(one.device for one in choice.chosen))
    elif choice.cpu and (choice.good or not manager.why_not_cpu):
        order = _order(manager, "cpu", ())
    else:
        return _nothing(choice, manager, args.json)
    _show(order, choice, args)
    return 0 if request is not None or choice.good else 1


def _order(manager: DeviceManager, vendor: str, devices: tuple[Any, ...]) -> DeviceRequest:
    from vllm_adapter_doctor.containers.flags import DeviceRequest
    from vllm_adapter_doctor.devices.node_rules import on_wsl

    siblings = manager.inventory.of(vendor)
    return DeviceRequest(vendor, devices, siblings, manager.facts, on_wsl(manager.facts))


def _nothing(choice: DeviceChoice, manager: DeviceManager, as_json: bool) -> int:
    if as_json:
        emit_json({"choice": choice.to_json(), "flags": [], "notes": list(choice.notes)})
    else:
        print(f"chosen: {clean(choice.sentence)}")
        why = manager.why_not_cpu or "the devices asked for cannot be used"
        print(
            f"no flags: {why}; `vllm-adapter devices` says why, `VA_FALLBACK=allow` prints the "
            "flags for the CPU"
        )
    return 1


def _show(order: DeviceRequest, choice: DeviceChoice, args: argparse.Namespace) -> None:
    from vllm_adapter_doctor.containers.flags import command, notes, run_flags
    from vllm_adapter_doctor.containers.image import image_notes
    from vllm_adapter_doctor.containers.pod import pod, pod_notes, to_yaml

    said = (*notes(order, args.engine), *image_notes(order.vendor, order.facts))
    if args.engine == "k8s":
        fragment, flags = pod(order, args.image)
        said = (*said, *pod_notes(order))
        text = to_yaml(fragment)
    else:
        fragment, flags = None, run_flags(order, args.engine)
        text = command(order, args.engine, args.image, flags)
    if args.json:
        emit_json(
            {
                "engine": args.engine,
                "adapter": order.vendor,
                "devices": [device.id for device in order.devices] or ["cpu"],
                "command": None if fragment else text,
                "pod": fragment,
                "flags": [flag.to_json() for flag in flags],
                "notes": list(said),
                "choice": choice.to_json(),
            }
        )
        return
    ids = ", ".join(device.id for device in order.devices) or "the CPU"
    print(f"# for {clean(ids)}\n{text}\n")
    _reasons(flags)
    if not order.devices and args.role is None:
        said = (f"chosen: {choice.sentence}", *said)
    for sentence in said:
        print(f"note: {clean(sentence)}")


def _reasons(flags: tuple[Flag, ...]) -> None:
    print("why:")
    for flag in flags:
        mark = f" ({flag.source})" if flag.source else " (an assumption: no source is known here)"
        print(f"  {clean(flag.text)}: {clean(flag.why)}{mark}")
