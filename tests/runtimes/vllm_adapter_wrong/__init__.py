"""An adapter whose runtime is one of those in `zoo.RUNTIMES`: WRONG_RUNTIME names it."""
