"""Cases of a stranger, outside the project's own suite: they run where a command names them."""

from __future__ import annotations


def pytest_ignore_collect(collection_path, config):
    given = (*config.args, *config.invocation_params.args)
    return None if any("unseen" in str(word) for word in given) else True
