"""One file a strategy. Each has a generator of rounds and a `bound` on what it can ask for."""
