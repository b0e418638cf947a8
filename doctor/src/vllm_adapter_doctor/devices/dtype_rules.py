"""What of the dtypes is lost to the arch or to the driver, as verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from vllm_adapter.contract.capability import Capability
from vllm_adapter.contract.finding import Evidence
from vllm_adapter.hostfacts.facts import Driver
from vllm_adapter.planning.dtypes import BITS, lost_to_arch
from vllm_adapter_doctor.devices.box_device import Device
from vllm_adapter_doctor.devices.device_names import arch, capability, has_no_bfloat16
from vllm_adapter_doctor.devices.verdict import DeviceVerdict, Outcome
from vllm_adapter_doctor.vendor_data.driver_tables import is_older
from vllm_adapter_doctor.vendor_data.driver_versions import parse_version

NO_BFLOAT16: Final = "VA1301"


def dtype_verdicts(
    capability: Capability, driver: Driver | None, wanted: tuple[str, ...]
) -> Iterator[DeviceVerdict]:
    """What of the wanted dtypes is lost to the arch, or else to the driver."""
    reported = driver if driver is not None and parse_version(driver.version) else None
    for feature in wanted:
        to, pointer, why = lost_to_arch(capability, feature)
        if to is not None:
            yield _downgrade(feature, to, why, pointer)
            continue
        for i, rule in enumerate(capability.driver.get("downgrades", ())):
            if rule["feature"] != feature:
                continue
            at = f"/driver/downgrades/{i}"
            if reported is None:
                yield DeviceVerdict(
                    Outcome.UNKNOWN,
                    feature,
                    "",
                    f"{feature} needs the driver {rule['below']} or newer, and none was reported",
                    None,
                    rule["below"],
                    at,
                )
            elif is_older(reported, rule["below"]):
                why = (
                    f"the driver {reported.version} is older than "
                    f"{rule['below']}: {rule['reason']}"
                )
                yield _downgrade(
                    feature, rule["to"], why, at, got=reported.version, need=rule["below"]
                )


def without_bfloat16(
    device: Device, described: Capability | None = None
) -> Iterator[DeviceVerdict]:
    """What has float16 and no bfloat16: by its vendor's file, else by its descriptor."""
    if has_no_bfloat16(device) or (described and described.numerics.native_bfloat16 is False):
        level, code, name = capability(device), arch(device), device.name or device.vendor
        known = (
            f"{name}: compute capability {level}" if level else f"{name} ({(code or '').lower()})"
        )
        yield DeviceVerdict(
            Outcome.NOTE,
            "bfloat16",
            NO_BFLOAT16,
            "float16 only; a request for bfloat16 is refused",
            code,
            evidence=(Evidence(known, device.source),),
        )


def _downgrade(
    feature: str,
    to: str,
    why: str,
    pointer: str,
    *,
    got: str | None = None,
    need: str | None = None,
) -> DeviceVerdict:
    cost = ""
    if feature in BITS and to in BITS and BITS[feature] != BITS[to]:
        times = Fraction(BITS[to], BITS[feature])
        cost = f"; weights and KV cache kept in it take {float(times):g} times the bytes"
    return DeviceVerdict(
        Outcome.DOWNGRADE,
        feature,
        "",
        f"{why}; {to} is used in place of {feature}{cost}",
        got,
        need,
        pointer,
        to=to,
    )
