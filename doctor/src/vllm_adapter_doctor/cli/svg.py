"""A few elements of SVG as text, in colours that all eyes and both backgrounds can tell apart."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape

STYLE: Final = """
text{font-family:system-ui,sans-serif;font-size:14px;fill:#1b1f24}
.panel{fill:#ffffff}.box{fill:#f3f6f9;stroke:#1b1f24;stroke-width:1.5}
.group{fill:none;stroke:#6b7684;stroke-width:1.5}.island{fill:#e6ecf2;stroke:none}
.small{font-size:11px;fill:#4a5460}.bold{font-weight:600}.title{font-size:16px;font-weight:600}
.fabric{fill:none;stroke:#0072b2;stroke-width:2.5}.fabric2{fill:none;stroke:#009e73;stroke-width:2.5}
.bad{fill:none;stroke:#d55e00;stroke-width:2.5;stroke-dasharray:7 4}
.frame{fill:none;stroke:#0072b2;stroke-width:3}
.weak{stroke:#d55e00;stroke-width:3;stroke-dasharray:7 4}
.lane{font-size:12px;font-weight:600;paint-order:stroke;stroke:#ffffff;stroke-width:4px}
.alarm{fill:#b34700;font-weight:600}
@media (prefers-color-scheme:dark){
text{fill:#eef2f6}.panel{fill:#14181d}.box{fill:#222a33;stroke:#d5dde6}
.group{stroke:#8b97a5}.island{fill:#2b3540}.small{fill:#b9c4d0}
.fabric{stroke:#56b4e9}.fabric2{stroke:#2fcf9f}.frame{stroke:#56b4e9}.bad{stroke:#ff8a3d}.weak{stroke:#ff8a3d}
.lane{stroke:#14181d}.alarm{fill:#ff9d5c}}
"""
"""Blue, green and vermilion of the Okabe-Ito palette; a bad link is also dashed and marked."""


class Canvas:
    """Collects elements; `document` is the whole picture. Positions are in pixels."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """A rectangle with round corners, in the style of a class of STYLE."""
        self._parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            'rx="8"/>'
        )

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """One line; `anchor` is start, middle or end."""
        self._parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{_safe(text)}</text>'
        )

    def curve(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        pull: tuple[float, float],
        kind: str,
    ) -> None:
        """A curve whose two handles are at the heights `pull` above or below its ends."""
        (x1, y1), (x2, y2) = start, end
        self._parts.append(
            f'<path class="{kind}" d="M{x1:g} {y1:g}C{x1:g} {y1 + pull[0]:g} '
            f'{x2:g} {y2 + pull[1]:g} {x2:g} {y2:g}"/>'
        )

    def document(self, width: float, height: float, title: str) -> str:
        """The file's text; a panel of its own lies behind everything."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img">\n<title>{_safe(title)}</title>\n'
            f"<style>{STYLE}</style>\n"
            f'<rect class="panel" width="{width:g}" height="{height:g}" rx="10"/>\n'
        )
        return head + "\n".join(self._parts) + "\n</svg>\n"


def _safe(text: str) -> str:
    """Text that XML can hold: names of devices come from pasted reports."""
    return escape("".join(c if c.isprintable() else " " for c in text))
