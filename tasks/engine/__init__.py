"""The engine: KV-cache budget, one child process that answers batches, and what it measured."""
