"""A table of verdicts at the end of a module of unseen cases."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest


def table_of(title):
    """A fixture of the module that takes rows (case, verdict, why), and prints them at its end."""

    @pytest.fixture(scope="module")
    def table(request):
        rows = []
        yield rows
        tally = sorted(Counter(row[1] for row in rows).items())
        counts = ", ".join(f"{word} {count}" for word, count in tally)
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            print(f"\n== {title}: {len(rows)} cases: {counts}")
            for name, word, why in rows:
                print(f"{word:8} {name:44} {' '.join(str(why).split())[:220]}")

    return table
