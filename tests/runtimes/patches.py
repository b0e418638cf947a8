"""Wrong C libraries: the simulated accelerator with one place of its source changed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

import sim_library

FILE: Final = Path(__file__).with_name("patches.toml")
PATCHES: Final[dict[str, list[dict[str, Any]]]] = tomllib.loads(FILE.read_text("utf-8"))


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
