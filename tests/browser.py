"""A real Chromium by its own driver, over WebDriver's plain HTTP: no package is needed."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVERS = ("chromedriver", "chromium.chromedriver")
TAB, ENTER = "\ue004", "\ue007"


def missing() -> str:
    """Which of the two is not installed; empty where both are."""
    found = [next(filter(None, map(shutil.which, names)), None) for names in (BROWSERS, DRIVERS)]
    return "" if all(found) else "Chromium and its driver are not installed"


class Browser:
    """One window."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"
        options = {
            "binary": next(filter(None, map(shutil.which, BROWSERS))),
            "args": ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"],
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._call("/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base += f"/session/{made['sessionId']}"

    def open(self, url: str) -> None:
        """Loads a page."""
        self._call("/url", {"url": url})

    def run(self, script: str) -> Any:
        """What a script returns."""
        return self._call("/execute/sync", {"script": script, "args": []})

    def command(self, name: str, **values: Any) -> Any:
        """One command of the DevTools protocol."""
        return self._call("/goog/cdp/execute", {"cmd": name, "params": values})

    def press(self, *keys: str) -> None:
        """Presses keys one after another."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def console(self) -> list[str]:
        """What the page has written to the console since it was asked last."""
        return [
            f"{one['level']}: {one['message']}"
            for one in self._call("/se/log", {"type": "browser"})
        ]

    def close(self) -> None:
        """Ends the window."""
        request = urllib.request.Request(self._base, method="DELETE")
        urllib.request.urlopen(request, timeout=60).close()

    def _call(self, path: str, body: dict[str, Any]) -> Any:
        data = json.dumps(body).encode()
        request = urllib.request.Request(
            self._base + path, data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A window of a new browser; it ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = next(filter(None, map(shutil.which, DRIVERS)))
    process = subprocess.Popen(
        [driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(300):
            try:
                window = Browser(port)
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        else:
            raise RuntimeError("the browser's driver does not answer")
        try:
            yield window
        finally:
            window.close()
    finally:
        process.terminate()
        process.wait(timeout=30)
