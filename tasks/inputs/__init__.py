"""Queries, documents and candidates: found, checked, joined and laid out once for the night."""
