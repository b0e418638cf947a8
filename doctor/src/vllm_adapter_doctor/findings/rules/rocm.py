"""AMD: the kernel driver against ROCm."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_adapter.contract.finding import Evidence
from vllm_adapter_doctor.findings.host import ExaminedHost
from vllm_adapter_doctor.findings.rule import Data, RuleHit
from vllm_adapter_doctor.vendor_data.driver_versions import parse_version


def driver_window(box: ExaminedHost, _: Data) -> Iterator[RuleHit]:
    """Pairs that are outside of AMD's window however their numbers are read.

    A driver's number may be the package's or the module's own, so that most cannot be held
    against ROCm's: up to ROCm 6.3 the window is two releases, later about a year.
    """
    driver, torch = box.facts.driver("amdgpu"), box.facts.torch
    reported = box.facts.driver("rocm")
    release = torch.hip if torch and torch.hip else reported.version if reported else None
    own, theirs = (
        parse_version(text) if text else None
        for text in (driver.version if driver else None, release)
    )
    if driver is None or own is None or theirs is None or len(theirs) < 2:
        return
    major, rocm_release = own[0][1], (theirs[0][1], theirs[1][1])
    if not (
        (major >= 30 and (6, 0) <= rocm_release <= (6, 3))
        or (major == 5 and rocm_release >= (7, 0))
    ):
        return
    yield RuleHit(
        [
            Evidence(f"kernel driver {driver.version}", driver.source),
            Evidence(f"ROCm {release}", "host facts"),
        ],
        {"driver": driver.version, "rocm": release or ""},
    )
