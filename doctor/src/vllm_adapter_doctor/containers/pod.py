"""The chosen devices as a fragment of a Kubernetes pod: JSON values, and YAML to paste.

Device nodes come from the vendor's device plug-in, which the cluster must run; the fragment asks
for them by its resource key.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from vllm_adapter.errors import InputError
from vllm_adapter_doctor.containers.flags import DeviceRequest, Flag
from vllm_adapter_doctor.containers.recipes import Resource
from vllm_adapter_doctor.devices.box_device import Device
from vllm_adapter_doctor.devices.visible import environment_for

_PLAIN: Final = re.compile(r"[A-Za-z/][\w./-]*")
_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def pod(order: DeviceRequest, image: str) -> tuple[dict[str, Any], tuple[Flag, ...]]:
    """The pod's fragment, and the reason of each part.

    Raises:
        InputError: no recipe, or no device plug-in, is known for the vendor.
    """
    items = [item for item in order.recipe.items if item.pod and order.holds(item)]
    reasons: list[Flag] = []
    container: dict[str, Any] = {"name": "vllm", "image": image}
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    if order.devices:
        key, source, why = _resource(order)
        cards = {device.bdf or device.id for device in order.devices}
        count = len(cards) if order.recipe.cards else len(order.devices)
        container["resources"] = {"limits": {key: count}}
        reasons.append(Flag((f"{key}: {count}",), why, source))
    env = [item.value.partition("=") for item in items if item.kind == "env"]
    reasons += [Flag((item.value,), item.why, item.source) for item in items if item.kind == "env"]
    if env:
        container["env"] = [{"name": name, "value": value} for name, _, value in env]
    caps = [item for item in items if item.kind == "cap"]
    if caps:
        added = [item.value for item in caps]
        container["securityContext"] = {"capabilities": {"add": added}}
        reasons += [Flag((item.value,), item.why, item.source) for item in caps]
    volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}})
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    reasons.append(
        Flag(
            ("/dev/shm",),
            "a pod's own is 64 MiB; what is used of it counts as the pod's memory",
            "vLLM docs",
        )
    )
    for number, item in enumerate(item for item in items if item.kind == "mount"):
        volumes.append({"name": f"host{number}", "hostPath": {"path": item.value}})
        path = item.target or item.value
        mounts.append({"name": f"host{number}", "mountPath": path, "readOnly": True})
        reasons.append(Flag((item.value,), item.why, item.source))
    container["volumeMounts"] = mounts
    spec: dict[str, Any] = {"containers": [container], "volumes": volumes}
    if groups := _groups(order):
        spec["securityContext"] = {"supplementalGroups": groups}
        why = "groups of the device nodes, for a container that does not run as root"
        reasons.append(Flag((f"supplementalGroups {groups}",), why, "vLLM docs"))
    return {"spec": spec}, tuple(reasons)


def pod_notes(order: DeviceRequest) -> tuple[str, ...]:
    """What the fragment leaves to the cluster."""
    found = []
    if order.devices:
        found.append("the vendor's device plug-in must run on the node; it picks which devices")
        if not order.whole:
            chosen = environment_for(order.devices, order.siblings)
            names = ", ".join(f"{name}={value}" for name, value in chosen.variables)
            found.append(f"outside Kubernetes these devices would be {names or 'chosen by hand'}")
    if any(item.kind == "group" for item in order.recipe.items) and not _groups(order):
        found.append(
            "a container that does not run as root needs supplementalGroups: the numbers "
            "of the groups of /dev/kfd and /dev/dri/renderD*, which are not in the report"
        )
    return tuple(found)


def _resource(order: DeviceRequest) -> tuple[str, str, str]:
    """The plug-in's key, where that is from, and why."""
    device = order.devices[0]
    found = next((one for one in order.recipe.resources if _holds(one, device)), None)
    if found is None:
        raise InputError(
            f"the key of {order.vendor}'s device plug-in is not known",
            hint="ask the vendor's documents; docker and podman need none",
        )
    why = "the device plug-in's key: it passes nodes and libraries in"
    key = found.key.format(partition=device.partition)
    return key, found.source, f"{why}; {found.note}" if found.note else why


def _holds(one: Resource, device: Device) -> bool:
    reported = f"{device.arch} {device.name}".lower()
    return (
        (not one.partition or bool(device.partition))
        and (not one.driver or one.driver == device.driver)
        and one.words in reported
    )


def _groups(order: DeviceRequest) -> list[int]:
    """Group numbers of the nodes that the recipe names, root's left out."""
    wanted = {
        item.value.rstrip("0123456789") for item in order.recipe.items if item.kind == "group"
    }
    nodes = order.facts.nodes
    found = {n.group for n in nodes if n.group and n.path.rstrip("0123456789") in wanted}
    return sorted(found)


def to_yaml(value: Any, indent: int = 0) -> str:
    """JSON values as block YAML; a text that YAML might read as something else is quoted."""
    pad = " " * indent
    lines = []
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, dict | list) and item:
                lines.append(f"{pad}{_scalar(key)}:")
                lines.append(to_yaml(item, indent + 2))
            else:
                lines.append(f"{pad}{_scalar(key)}: {_scalar(item)}")
        return "\n".join(lines)
    for item in value:
        if isinstance(item, dict | list) and item:
            text = to_yaml(item, indent + 2)
            lines.append(f"{pad}- {text[indent + 2 :]}")
        else:
            lines.append(f"{pad}- {_scalar(item)}")
    return "\n".join(lines)


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    body = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[^ -~]", lambda found: f"\\U{ord(found[0]):08x}", body) + '"'
