"""What an adapter's hook `plan_advice` asks of a plan: a few keys, checked, and said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from vllm_adapter.errors import AdapterError
from vllm_adapter.files import bounded, shown

if TYPE_CHECKING:
    from vllm_adapter.planning.box import PlanBox
    from vllm_adapter.planning.demand import ModelDemand

NUMBERS: Final = ("block_size", "sequences", "prefill_chunk", "tensor_parallel")
"""Keys whose value is a whole number; `tensor_parallel` is the most that a group may have."""
TEXTS: Final = ("kv_dtype", "compile_mode", "reason")
KEYS: Final = (*NUMBERS, *TEXTS, "environment")


@dataclass(frozen=True, slots=True)
class Advice:
    """An adapter's advice. `notes` say what of it was not taken."""

    adapter: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why, in the adapter's words."""
        said = self.values.get("reason")
        return f"advice of adapter {self.adapter}" + (f": {said}" if said else "")

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for the server's process."""
        found: Mapping[str, str] = self.values.get("environment", {})
        return found

    def number(self, key: str) -> int | None:
        """A whole number, if it was advised."""
        found: int | None = self.values.get(key)
        return found

    def text(self, key: str) -> str | None:
        """A word, if it was advised."""
        found: str | None = self.values.get(key)
        return found


def ask_adapter(demand: ModelDemand, box: PlanBox) -> Advice:
    """Asks the hook of the box's adapter; one that fails, or answers nonsense, is said.

    Nothing is asked of an adapter that is not installed, or that has no such hook.
    """
    record = box.record
    if record is None or record.manifest is None or record.manifest.plugin is None:
        return Advice()
    from vllm_adapter.contract.dotted import may_implement
    from vllm_adapter.discovery.adapter import Adapter

    if not may_implement(record.manifest.plugin, "plan_advice"):
        return Advice()
    try:
        said = Adapter(record).call(
            "plan_advice", demand=demand.to_json(), capability=box.capability
        )
    except AdapterError as error:
        return Advice(record.name, notes=(f"{error.message}: planned without its advice",))
    return checked(record.name, said)


def checked(adapter: str, said: Any) -> Advice:
    """What of an answer can be used."""
    if said is None:
        return Advice(adapter)
    if not isinstance(said, Mapping):
        return Advice(adapter, notes=(f"advice of {adapter} is {shown(said)}, no mapping",))
    values: dict[str, Any] = {}
    notes = []
    for key, value in said.items():
        if key in NUMBERS and isinstance(value, int) and not isinstance(value, bool) and value > 0:
            values[key] = value
        elif key in TEXTS and isinstance(value, str):
            values[key] = bounded(value, 500)
        elif key == "environment" and _pairs(value):
            values[key] = dict(value)
        else:
            notes.append(
                f"advice of {adapter} on {shown(key)}, {shown(value)}, is not taken: it may be "
                f"{', '.join(KEYS)}"
            )
    return Advice(adapter, values, tuple(notes))


def _pairs(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and name.replace("_", "a").isalnum() and isinstance(text, str)
        for name, text in value.items()
    )
