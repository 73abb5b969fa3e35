"""The engine: one child process that answers batches, and what it measured."""
