"""From what was seen of a vLLM to findings: one small function a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.broker.foreign import NAME
from vllm_adapter.broker.selection import Selection
from vllm_adapter.broker.vllm_drift import ApiComparison
from vllm_adapter.broker.vllm_install import VllmInstall
from vllm_adapter.contract.codes import CODES
from vllm_adapter.contract.finding import Evidence, Finding, Severity
from vllm_adapter.discovery.records import Status
from vllm_adapter_doctor.findings._vllm_child import GENERAL, PLATFORMS
from vllm_adapter_doctor.findings.template import render


@dataclass(frozen=True, slots=True)
class VllmInspection:
    """Everything that a rule may look at. `replay` is what `vllm_replay.replay` gives."""

    vllm: VllmInstall
    selection: Selection
    replay: Mapping[str, Any]
    comparison: ApiComparison
    required: str | None = None
    named: tuple[str, ...] = ()

    def plugins(self, group: str) -> list[Mapping[str, Any]]:
        """The installed entry points of a group."""
        return [plugin for plugin in self.replay.get("plugins", ()) if plugin["group"] == group]


def diagnose(seen: VllmInspection) -> tuple[Finding, ...]:
    """All findings, errors first."""
    found = [finding for rule in _RULES for finding in rule(seen)]
    return tuple(sorted(found, key=lambda finding: finding.severity is not Severity.ERROR))


def _finding(
    code: str, severity: Severity, evidence: Iterable[Evidence], **places: str
) -> Finding:
    """A finding with its code's own sentences, and `places` in them."""
    cause, step = (render(text, places) for text in (CODES[code].cause, CODES[code].step))
    return Finding(code, severity, tuple(evidence), cause, step)


def _replay_died(seen: VllmInspection) -> Iterator[Finding]:
    died, failed = seen.replay.get("died"), seen.replay.get("import_failed")
    if died:
        evidence = [Evidence(line, "stderr of the child") for line in seen.replay["words"]]
        how = f"the child that imported vLLM {died}"
        yield _finding("VA5010", Severity.ERROR, evidence, how=how)
    elif failed:
        how = "vLLM cannot be imported"
        yield _finding("VA5010", Severity.ERROR, [_evidence(failed)], how=how)


def _name_trap(seen: VllmInspection) -> Iterator[Finding]:
    if seen.vllm.lacks_distribution:
        name = seen.vllm.distribution or "no distribution"
        said = Evidence(f"{seen.vllm.folder} belongs to {name}", "installed metadata")
        yield _finding("VA5003", Severity.NOTE, [said])


def _swallowed(seen: VllmInspection) -> Iterator[Finding]:
    for group in (PLATFORMS, GENERAL):
        for plugin in seen.plugins(group):
            if plugin.get("raised"):
                yield _finding(
                    "VA5004",
                    Severity.ERROR if group == PLATFORMS else Severity.WARNING,
                    [_evidence(plugin["raised"])],
                    name=plugin["name"],
                    distribution=plugin["distribution"],
                    group=group,
                    when="when it is imported" if plugin.get("at") else "when vLLM calls it",
                )


def _two_platforms(seen: VllmInspection) -> Iterator[Finding]:
    # Ours steps aside for one of another project; two of those are two too many.
    active = [plugin for plugin in seen.plugins(PLATFORMS) if plugin.get("returned")]
    if len(active) > 1:
        others = " or ".join(plugin["name"] for plugin in active if plugin["name"] != NAME)
        said = [Evidence(f"{p['name']} gives {p['returned']}", p["value"]) for p in active]
        yield _finding("VA5005", Severity.ERROR, said, others=others)


def _named(seen: VllmInspection) -> Iterator[Finding]:
    if seen.named and seen.selection.platform is None:
        named = " and ".join(seen.named)
        said = Evidence(f"VA_ADAPTERS names {named}", "environment")
        yield _finding("VA5014", Severity.ERROR, [said], reason=seen.selection.reason)


def _left_out(seen: VllmInspection) -> Iterator[Finding]:
    for group in (PLATFORMS, GENERAL):
        ours = [plugin for plugin in seen.plugins(group) if plugin["name"] == NAME]
        if "plugins" in seen.replay and not ours:
            said = Evidence(f"no entry point {NAME} in {group}", "installed metadata")
            yield _finding("VA5011", Severity.ERROR, [said])
        elif ours and not ours[0]["allowed"]:
            said = Evidence(f"VLLM_PLUGINS={','.join(seen.replay['allowed'])}", "environment")
            severity = Severity.ERROR if seen.required else Severity.WARNING
            yield _finding("VA5006", severity, [said], name=NAME, group=group)


def _target_device(seen: VllmInspection) -> Iterator[Finding]:
    if seen.replay.get("target_device") == "cpu":
        said = Evidence("VLLM_TARGET_DEVICE=cpu", "environment")
        yield _finding("VA5007", Severity.WARNING, [said])


def _unresolved(seen: VllmInspection) -> Iterator[Finding]:
    raised = (seen.replay.get(part, {}).get("raised") for part in ("resolution", "active"))
    failed = next(filter(None, raised), None)
    if failed:
        yield _finding("VA5012", Severity.ERROR, [_evidence(failed)])


def _required(seen: VllmInspection) -> Iterator[Finding]:
    active = seen.replay.get("active", {})
    kind = active.get("device_type")
    if seen.required and "class" in active and kind != seen.required:
        said = [
            Evidence(f"VA_REQUIRE_DEVICE={seen.required}", "environment"),
            Evidence(f"vLLM takes {active['class']}, device type {kind or 'none'}", "replay"),
        ]
        place, reason = kind or "no known device", seen.selection.reason
        yield _finding("VA5001", Severity.ERROR, said, kind=place, reason=reason)


def _not_used(seen: VllmInspection) -> Iterator[Finding]:
    selection = seen.selection
    usable = [one for one in selection.considered if one.status == Status.OK.value]
    if selection.platform is None and any(one.torch_type for one in usable):
        said = [
            Evidence(f"{one.name}: {one.why_not or selection.reason}", one.distribution)
            for one in usable
        ]
        tied = selection.tied[0] if selection.tied else ""
        is_open = not tied and selection.adapter is None
        places = {
            "reason": selection.reason,
            "tied": tied,
            "setting": "VA_ADAPTERS=NAME" if is_open else "",
            "chosen": selection.adapter or "",
        }
        yield _finding("VA5013", Severity.WARNING, said, **places)


def _drift(seen: VllmInspection) -> Iterator[Finding]:
    for one in seen.comparison.drift:
        missing = one.now is None
        yield _finding(
            "VA5008" if missing else "VA5009",
            Severity.ERROR if missing else Severity.WARNING,
            [Evidence(f"{one.name}: {one.now or 'not there'}", one.source)],
            was=one.was or "a class without this method",
            file=seen.comparison.snapshot.name,
            release=seen.comparison.release,
        )


_RULES: Final[tuple[Callable[[VllmInspection], Iterator[Finding]], ...]] = (
    _replay_died,
    _unresolved,
    _required,
    _named,
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
