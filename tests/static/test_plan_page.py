"""The page of a plan in a real Chromium: no error, narrow screens, dark mode, the keyboard."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from browser import ENTER, TAB, browser, missing
from planning_boxes import box, plan

from vllm_adapter.planning.page import page

pytestmark = pytest.mark.static

PLANS = {
    "eight": lambda: plan("Llama-3-70B", box(8), 8192, 64),
    "too large": lambda: plan("DeepSeek-V3", box(1), 8192, 2),
    "encoder": lambda: plan("bert-base"),
}


@pytest.fixture(scope="module")
def window():
    if missing():
        pytest.skip(f"{missing()}: apt-get install chromium chromium-driver")
    with browser() as found:
        yield found


@pytest.fixture
def shown(window, tmp_path):
    def show(name: str, width: int = 400, dark: bool = False):
        file = tmp_path / "page.html"
        file.write_text(page(PLANS[name]()), encoding="utf-8")
        window.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=800, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        window.command("Emulation.setEmulatedMedia", features=[scheme])
        window.open(file.as_uri())
        return window

    return show


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [400, 1200])
def test_no_error_and_nothing_is_wider_than_the_screen(shown, name, width):
    seen = shown(name, width)
    assert seen.console() == []
    assert seen.run("return document.documentElement.scrollWidth") <= width
    smallest = seen.run(
        "return Math.min(...[...document.querySelectorAll('svg text')].map(t =>"
        " t.getBoundingClientRect().height))"
    )
    assert smallest >= 11, "letters of a picture are as large as a newspaper's"
    outside = seen.run(
        "return [...document.querySelectorAll('svg')].flatMap(s => {"
        " const b = s.getBoundingClientRect();"
        " return [...s.querySelectorAll('text,rect,circle')].filter(e => {"
        " const r = e.getBoundingClientRect();"
        " return r.left < b.left - 2 || r.right > b.right + 2 || r.bottom > b.bottom + 2;"
        " }).map(e => e.outerHTML); })"
    )
    assert outside == []


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable_in_both_modes(shown, dark):
    """A contrast of 4.5, as the WCAG ask for text."""
    seen = shown("eight", dark=dark)
    ground = luminance(seen.run("return getComputedStyle(document.body).backgroundColor"))
    assert (ground < 0.1) == dark
    for part in ("body", ".verdict", "a.skip", "details p.reads"):
        script = f"return getComputedStyle(document.querySelector('{part}')).color"
        ink = luminance(seen.run(script))
        assert (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05) >= 4.5, part
    fill = seen.run("return getComputedStyle(document.querySelector('svg text')).fill")
    ink = luminance(fill)
    assert (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05) >= 4.5


def test_the_keyboard_reaches_and_opens_every_reason(shown):
    seen = shown("eight")
    seen.press(TAB)
    assert seen.run("return document.activeElement.className") == "skip"
    seen.press(ENTER)
    assert seen.run("return document.activeElement.id") == "why"
    seen.press(TAB)
    assert seen.run("return document.activeElement.tagName") == "SUMMARY"
    outline = seen.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    seen.press(ENTER)
    assert seen.run("return document.activeElement.parentElement.open") is True


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "link", "rect", "line", "circle", "polyline"):
            self.open.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href") and value]

    def handle_endtag(self, tag):
        if tag in ("rect", "line", "circle", "polyline") and self.open[-1] != tag:
            return
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", PLANS)
def test_it_is_one_file_that_loads_nothing(name):
    text = page(PLANS[name]())
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert all(link.startswith(("#", "data:")) for link in tags.links)
    assert "<script" not in text and "@import" not in text and "url(" not in text


def test_what_a_stranger_wrote_is_text():
    found = plan("Qwen3-0.6B", box(identity__name="<img src=x onerror=alert(1)>"))
    assert "<img" not in page(found)
