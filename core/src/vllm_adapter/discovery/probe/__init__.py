"""One child process imports and probes adapters; what it found is kept."""
