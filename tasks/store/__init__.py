"""The ledger: durable batches, the loader, run rows, identity, checks, publishing and retention."""
