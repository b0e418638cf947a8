"""An earlier certificate of the adapter, against which its speed must not fall.

Nothing can be run in turn with a file, so that shares of the roofline are compared, each by what
was measured beside it: a slower machine slows both. A fall counts where both intervals are
farther apart than the 10 % that are allowed; what they cannot tell apart is "not resolved".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from vllm_adapter.errors import CertificateError
from vllm_adapter.files import read_json
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.performance.figures import Figure

ALLOWED: Final = 0.9
"""A share may fall to this part of what it was."""
FELL, KEPT, ROSE = "fell", "kept", "rose"
NOT_RESOLVED: Final = "not resolved"
NOT_COMPARED: Final = "not compared"


@dataclass(frozen=True)
class RunConditions:
    """What must be equal for two speeds to be compared."""

    device: str
    torch: str
    drivers: Mapping[str, str]
    threads: int

    def to_json(self) -> dict[str, Any]:
        """As the certificate has it."""
        return {
            "device": self.device,
            "torch": self.torch,
            "drivers": dict(self.drivers),
            "threads": self.threads,
        }

    def difference(self, other: Mapping[str, Any]) -> str | None:
        """The first condition that is another there, in words."""
        for name, mine in self.to_json().items():
            if other.get(name) != mine:
                return f"{name} was {other.get(name)} and is {mine}"
        return None


def conditions(target: Target, torch_version: str, threads: int) -> RunConditions:
    """The conditions of this run."""
    assert target.device is not None
    known = target.capability.identity.name if target.capability else None
    drivers = {one.component: str(one.version) for one in target.host.drivers}
    return RunConditions(known or target.device.name, torch_version, drivers, threads)


@dataclass(frozen=True)
class Comparison:
    """How a share is to that of the baseline; `then` is null where there is nothing like it."""

    verdict: str
    then: Figure | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As the certificate has it."""
        then = None if self.then is None else self.then.to_json()
        return {"verdict": self.verdict, "then": then, "reason": self.reason}


def compare(now: Figure, then: Figure) -> str:
    """What became of a share, as far as both intervals tell."""
    if now.high < ALLOWED * then.low:
        return FELL
    if now.low > then.high / ALLOWED:
        return ROSE
    if now.low >= ALLOWED * then.high and now.high <= then.low / ALLOWED:
        return KEPT
    return NOT_RESOLVED


class Baseline:
    """The shares of an earlier certificate."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self._performance = document["performance"]
        self._shares = {_key(row): row for row in self._performance["shares"]}

    def described(self) -> dict[str, Any]:
        """As the new certificate names it."""
        return {name: self.document[name] for name in ("digest", "created")}

    def judge(self, row: Mapping[str, Any], now: RunConditions) -> Comparison:
        """Holds one row of the new certificate's shares against the old one's."""
        old = self._shares.get(_key(row))
        if old is None:
            return Comparison(NOT_COMPARED, reason="it was not measured then")
        then = Figure.from_json(old["share"])
        other = now.difference(self._performance["conditions"])
        if other is None and old["sizes"] != row["sizes"]:
            other = "its sizes were others"
        if other is not None:
            return Comparison(NOT_COMPARED, then, other)
        return Comparison(compare(Figure.from_json(row["share"]), then), then)


@lru_cache(maxsize=4)
def read_baseline(path: Path, adapter: str) -> Baseline:
    """The shares of a certificate.

    Raises:
        CertificateError: it cannot be read, is of another adapter, or has measured nothing.
    """
    raw = read_json(path, "the baseline", CertificateError)
    problem = _problem(raw, adapter)
    if problem is not None:
        raise CertificateError(
            f"{path} is no baseline for {adapter}: {problem}",
            hint="give a certificate of this adapter that `certify --level L5` wrote",
        )
    return Baseline(raw)


def with_baseline(target: Target, given: Path | None, overwritten: Path) -> Target:
    """The target with the baseline that was named, or the certificate that is about to go.

    Raises:
        CertificateError: as `read_baseline`, of the one that was named.
    """
    if given is None:
        if not overwritten.is_file():
            return target
        try:
            read_baseline(overwritten, target.record.name)
        except CertificateError:
            return target
        return replace(target, baseline=overwritten)
    read_baseline(given, target.record.name)
    return replace(target, baseline=given)


def _problem(raw: Any, adapter: str) -> str | None:
    if not isinstance(raw, dict) or not str(raw.get("schema", "")).startswith(
        "vllm-adapter/certificate/1."
    ):
        return "it is no certificate"
    from vllm_adapter.cli.checks import schema_faults

    found, _ = schema_faults("certificate", raw, newer=False)
    if found:
        return f"it breaks its schema: {found[0]}"
    if raw["adapter"]["name"] != adapter:
        return f"it is of {raw['adapter']['name']}"
    if "performance" not in raw:
        return "it has no figures: it was asked for a level below L5"
    return None


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["operator"], row["dtype"], row["phase"], row["size"]
