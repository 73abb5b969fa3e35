"""The loop of a night: how queries are ranked, and the queries in flight."""
