"""The child of L0's rules: imports an adapter's code where it can do no harm, and reports.

    python -m vllm_adapter_conformance.rules._inspect_child WHAT < order.json

`imports` imports the module of the order and lists what of `forbidden` came with it; `hooks` makes
the plug-in and registers it; `implementations` calls its hook and lists what it gives; `probe`
calls its hook for each of some hosts and counts what it gives. One JSON
document goes to the file that the order names, since vendors print on stdout.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

Order = Mapping[str, Any]


def imports(order: Order) -> dict[str, Any]:
    """Which forbidden modules the import of `module` loads."""
    importlib.import_module(order["module"])
    return {"loaded": [name for name in order["forbidden"] if name in sys.modules]}


def hooks(order: Order) -> dict[str, Any]:
    """Registers the plug-in. `unmarked`: named like a hook, and without @hookimpl."""
    import pluggy

    from vllm_adapter.contract.hookspecs import HOOKS, PROJECT, AdapterSpec

    instance = _make(order["plugin"])
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(AdapterSpec)
    manager.register(instance)
    manager.check_pending()
    marked = {caller.name for caller in manager.get_hookcallers(instance) or ()}
    kind = type(instance)
    own = (n for n in dir(kind) if getattr(kind, n) is not getattr(AdapterSpec, n, None))
    methods = [name for name in own if name in HOOKS]
    return {"hooks": sorted(marked), "unmarked": [name for name in methods if name not in marked]}


def implementations(order: Order) -> dict[str, Any]:
    """What the hook `implementations` gives, in the words of a descriptor; None: it has none."""
    from vllm_adapter.contract.marks import entry_of

    plugin: Any = _make(order["plugin"])
    given = plugin.implementations() if hasattr(plugin, "implementations") else None
    if given is None:
        return {"implementations": None}
    found: list[dict[str, Any]] = []
    for function in given:
        marked = entry_of(function)
        if marked is None:
            found.append({"name": f"{function!r}", "op": None, "entry": None})
            continue
        op, entry = marked
        found.append({"name": entry.run, "op": op, "entry": _words(entry)})
    return {"implementations": found}


def probe(order: Order) -> dict[str, Any]:
    """How many devices the hook `probe` gives of each host, None where it gives none of its own.

    An error is its text in place of the number.
    """
    import pluggy

    from vllm_adapter.contract.hookspecs import PROJECT, AdapterSpec
    from vllm_adapter.hostfacts.facts import HostFacts

    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(AdapterSpec)
    manager.register(_make(order["plugin"]))
    counts: dict[str, int | str | None] = {}
    for name, raw in order["hosts"].items():
        try:
            given = manager.hook.probe(host=HostFacts.from_json(raw))
            counts[name] = None if given is None else len(given)
        except Exception as error:
            counts[name] = f"{type(error).__name__}: {error}"
    return {"counts": counts}


def _words(entry: Any) -> dict[str, Any]:
    limits = {k: list(v) if isinstance(v, tuple) else dict(v) for k, v in entry.limits.items()}
    return {
        "dtypes": sorted(entry.dtypes),
        "limits": limits,
        "form": entry.form,
        "variant": entry.variant,
    }


def _make(plugin: str) -> object:
    module, _, path = plugin.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    instance: object = found()
    return instance


_ACTIONS: Final[Mapping[str, Callable[[Order], dict[str, Any]]]] = {
    "imports": imports,
    "hooks": hooks,
    "implementations": implementations,
    "probe": probe,
}


def main() -> None:
    """Serves one order; an error of the adapter is an answer, not ours to raise."""
    order = json.load(sys.stdin)
    sys.path[:] = order["path"]
    try:
        answer = _ACTIONS[sys.argv[1]](order)
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    Path(order["answer"]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
