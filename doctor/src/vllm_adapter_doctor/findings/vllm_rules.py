"""From what was seen of a vLLM to findings: one small function a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.broker.plugin import NAME
from vllm_adapter.broker.selection import Selection
from vllm_adapter.broker.vllm_drift import ApiComparison
from vllm_adapter.broker.vllm_install import VllmInstall
from vllm_adapter.contract.finding import Evidence, Finding, Severity
from vllm_adapter.discovery.records import Status
from vllm_adapter_doctor.findings._vllm_child import GENERAL, PLATFORMS

_REINSTALL: Final = "pip install --force-reinstall --no-deps vllm-adapter-core"


@dataclass(frozen=True, slots=True)
class VllmInspection:
    """Everything that a rule may look at. `replay` is what `vllm_replay.replay` gives."""

    vllm: VllmInstall
    selection: Selection
    replay: Mapping[str, Any]
    comparison: ApiComparison
    required: str | None = None

    def plugins(self, group: str) -> list[Mapping[str, Any]]:
        """The installed entry points of a group."""
        return [plugin for plugin in self.replay.get("plugins", ()) if plugin["group"] == group]


def diagnose(seen: VllmInspection) -> tuple[Finding, ...]:
    """All findings, errors first."""
    found = [finding for rule in _RULES for finding in rule(seen)]
    return tuple(sorted(found, key=lambda finding: finding.severity is not Severity.ERROR))


def _replay_died(seen: VllmInspection) -> Iterator[Finding]:
    died, failed = seen.replay.get("died"), seen.replay.get("import_failed")
    if died:
        evidence = tuple(Evidence(line, "stderr of the child") for line in seen.replay["words"])
        cause = f"the child that imported vLLM {died}"
    elif failed:
        evidence = (_evidence(failed),)
        cause = "vLLM cannot be imported"
    else:
        return
    yield Finding(
        "VA5010",
        Severity.ERROR,
        evidence,
        cause,
        action='see it with your own eyes: python -X faulthandler -c "import vllm.platforms"',
    )


def _name_trap(seen: VllmInspection) -> Iterator[Finding]:
    if seen.vllm.lacks_distribution:
        name = seen.vllm.distribution or "no distribution"
        yield Finding(
            "VA5003",
            Severity.WARNING,
            (Evidence(f"{seen.vllm.folder} belongs to {name}", "installed metadata"),),
            "vLLM's command asks for the version of a distribution named vllm, and there is none",
            action="start the server with `vllm-adapter serve MODEL`, which adds the name",
        )


def _swallowed(seen: VllmInspection) -> Iterator[Finding]:
    for group in (PLATFORMS, GENERAL):
        for plugin in seen.plugins(group):
            if plugin.get("raised"):
                when = "when it is imported" if plugin.get("at") else "when vLLM calls it"
                yield Finding(
                    "VA5004",
                    Severity.ERROR if group == PLATFORMS else Severity.WARNING,
                    (_evidence(plugin["raised"]),),
                    f"the plug-in {plugin['name']} of {plugin['distribution']} ({group}) raises "
                    f"{when}, and vLLM goes on without it",
                    action=f"pip install --upgrade {plugin['distribution']}, or uninstall it",
                )


def _two_platforms(seen: VllmInspection) -> Iterator[Finding]:
    active = [plugin for plugin in seen.plugins(PLATFORMS) if plugin.get("returned")]
    if len(active) > 1:
        others = [plugin["name"] for plugin in active if plugin["name"] != NAME]
        yield Finding(
            "VA5005",
            Severity.ERROR,
            tuple(Evidence(f"{p['name']} gives {p['returned']}", p["value"]) for p in active),
            "vLLM refuses to start when more than one installed platform plug-in answers",
            action=f"uninstall {' or '.join(others)}, or name one in VLLM_PLUGINS",
        )


def _left_out(seen: VllmInspection) -> Iterator[Finding]:
    for group in (PLATFORMS, GENERAL):
        ours = [plugin for plugin in seen.plugins(group) if plugin["name"] == NAME]
        if "plugins" in seen.replay and not ours:
            yield Finding(
                "VA5011",
                Severity.ERROR,
                (Evidence(f"no entry point {NAME} in {group}", "installed metadata"),),
                "vllm-adapter-core was installed before it had this entry point",
                action=_REINSTALL,
            )
        elif ours and not ours[0]["allowed"]:
            allowed = ",".join(seen.replay["allowed"])
            yield Finding(
                "VA5006",
                Severity.ERROR if seen.required else Severity.WARNING,
                (Evidence(f"VLLM_PLUGINS={allowed}", "environment"),),
                f"VLLM_PLUGINS does not name {NAME}, so that vLLM asks nothing of it in {group}",
                action=f"add {NAME} to VLLM_PLUGINS, or unset it",
            )


def _target_device(seen: VllmInspection) -> Iterator[Finding]:
    if seen.replay.get("target_device") == "cpu":
        yield Finding(
            "VA5007",
            Severity.WARNING,
            (Evidence("VLLM_TARGET_DEVICE=cpu", "environment"),),
            "with this variable vLLM takes its own CPU platform and asks no platform plug-in",
            action="unset VLLM_TARGET_DEVICE to run on an adapter",
        )


def _unresolved(seen: VllmInspection) -> Iterator[Finding]:
    failures = [
        failed
        for failed in (
            seen.replay.get("resolution", {}).get("raised"),
            seen.replay.get("active", {}).get("raised"),
        )
        if failed
    ]
    if failures:
        yield Finding(
            "VA5012",
            Severity.ERROR,
            tuple(map(_evidence, failures[:1])),
            "vLLM cannot settle on a platform, and does not start",
            action="follow the other findings; without ours: VLLM_PLUGINS= vllm serve MODEL",
        )


def _required(seen: VllmInspection) -> Iterator[Finding]:
    active = seen.replay.get("active", {})
    kind = active.get("device_type")
    if seen.required and "class" in active and kind != seen.required:
        yield Finding(
            "VA5001",
            Severity.ERROR,
            (
                Evidence(f"VA_REQUIRE_DEVICE={seen.required}", "environment"),
                Evidence(f"vLLM takes {active['class']}, device type {kind or 'none'}", "replay"),
            ),
            f"vLLM would run on {kind or 'no known device'}: {seen.selection.reason}",
            action="`vllm-adapter list --probe` says what is wrong with the device's adapter",
        )


def _not_used(seen: VllmInspection) -> Iterator[Finding]:
    selection = seen.selection
    usable = [one for one in selection.considered if one.status == Status.OK.value]
    if selection.platform is None and any(one.torch_type for one in usable):
        yield Finding(
            "VA5013",
            Severity.WARNING,
            tuple(
                Evidence(f"{one.name}: {one.why_not or selection.reason}", one.distribution)
                for one in usable
            ),
            selection.reason,
            action=f"run `export VA_ADAPTERS={selection.tied[0]}`, or another of the names"
            if selection.tied
            else "decide with VA_ADAPTERS=NAME",
        )


def _drift(seen: VllmInspection) -> Iterator[Finding]:
    file = seen.comparison.snapshot.name
    for one in seen.comparison.drift:
        missing = one.now is None
        yield Finding(
            "VA5008" if missing else "VA5009",
            Severity.ERROR if missing else Severity.WARNING,
            (Evidence(f"{one.name}: {one.now or 'not there'}", one.source),),
            f"our bridge was written for {one.was or 'a class without this method'} ({file})",
            action=f"use vLLM {seen.comparison.release}, or a newer vllm-adapter-core",
        )


_RULES: Final[tuple[Callable[[VllmInspection], Iterator[Finding]], ...]] = (
    _replay_died,
    _unresolved,
    _required,
    _two_platforms,
    _left_out,
    _swallowed,
    _name_trap,
    _target_device,
    _not_used,
    _drift,
)


def _evidence(raised: Mapping[str, Any]) -> Evidence:
    return Evidence(f"{raised['error']}: {raised['text']}", raised["where"] or "no frame")
