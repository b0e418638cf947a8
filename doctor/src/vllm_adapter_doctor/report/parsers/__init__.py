"""One module a tool: `parse(report) -> HostFacts` says what that tool said, and no more."""
