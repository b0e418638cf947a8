"""C libraries that are the simulated accelerator with a place of its source changed.

Those of `patches.toml` are wrong; those of `rights.toml` are right.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

import sim_library

HERE: Final = Path(__file__).parent
PATCHES: Final[dict[str, list[dict[str, Any]]]] = {
    name: changes
    for file in ("patches.toml", "rights.toml")
    for name, changes in tomllib.loads((HERE / file).read_text("utf-8")).items()
}
STEPS: Final = {"right_pool_by_steps": 64 << 20, "right_pool_of_all": 3 << 30}
"""What the descriptor says of free memory: memory.free_step_bytes."""


def build(folder: Path, name: str) -> Path:
    """The library with that fault, built in `folder` unless it is there already."""
    source = folder / f"src-{name}"
    source.mkdir(parents=True, exist_ok=True)
    texts = {file.name: file.read_text("utf-8") for file in sim_library.SIM.iterdir()}
    for change in PATCHES[name]:
        file, old = change["file"], change["old"]
        count = texts[file].count(old)
        assert count == 1, f"{name}: {old!r} stands {count} times in {file}"
        texts[file] = texts[file].replace(old, change["new"])
    for file, text in texts.items():
        (source / file).write_text(text, "utf-8")
    return sim_library.build(folder, sorted(source.glob("*.c")), f"-I{source}", name=f"lib{name}")
