"""One file a strategy: a frozen record of its sizes, its rounds, and a bound on what it can ask for."""
