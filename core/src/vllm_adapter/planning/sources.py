"""Where a plan's devices come from: a profile, a report, this machine; one of two sides of a diff.

What reads reports and judges devices is the doctor, which core does not know: it brings an entry
point of group `vllm_adapter.plan_box`, a function from a report's path, or None for this machine,
to a `PlanBox`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from vllm_adapter.errors import InputError
from vllm_adapter.files import JSON_BYTES, read_bounded
from vllm_adapter.planning.box import PlanBox
from vllm_adapter.planning.profiles import box_of_profile

GROUP: Final = "vllm_adapter.plan_box"
DOCTOR: Final = "vllm-adapter-doctor"
_HEAD: Final = 4096


def box_of_machine(report: str | None = None, profile: str | None = None) -> PlanBox:
    """The devices of this machine, or of a report, that may be used.

    `profile` is the descriptor of what the report shows and does not name.

    Raises:
        InputError: the doctor is not installed, the report cannot be read, or no device of it may
            be used, with the first reason why.
    """
    from vllm_adapter.discovery.distributions import entry_points

    described = None
    if profile is not None:
        described = box_of_profile(profile).capability
        if ":" in profile:
            raise InputError(
                f"--device-profile {profile}: how many devices there are, the report says",
                hint="leave the number away",
            )
    for point in entry_points(GROUP):
        if point.distribution == DOCTOR:
            box: PlanBox = point.load()(report, described)
            return box
    raise InputError(
        "which devices a machine has is read by the doctor, which is not installed",
        hint=f"pip install {DOCTOR}, or plan for a descriptor: --device-profile h200",
    )


def box_named(text: str, profile: str | None = None) -> PlanBox:
    """One side of `--diff`: a descriptor, a package folder of an adapter, a report, a profile.

    A folder needs `profile`, which of its descriptors is meant.

    Raises:
        InputError: it is none of these.
    """
    path = Path(text)
    try:
        folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError):
        folder = exists = False
    if folder:
        if profile is None:
            raise InputError(
                f"{text} is a folder: which of its descriptors is meant is not said",
                hint="add the profile that is meant, such as --device-profile h200",
            )
        return box_of_profile(profile, path)
    if not exists:
        return box_of_profile(text)
    try:
        head = read_bounded(path, JSON_BYTES, cut=True)[:_HEAD]
    except OSError as problem:
        raise InputError(
            f"cannot read {text}: {problem.strerror or problem}",
            hint="give a descriptor, a report, a package folder or the name of a profile",
        ) from None
    if b"vllm-adapter/capability/" in head:
        count = profile.rpartition(":")[2] if profile and ":" in profile else "1"
        return box_of_profile(f"{path if '/' in text else f'./{text}'}:{count}")
    return box_of_machine(text)
