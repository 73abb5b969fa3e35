"""Prompts into batches that the KV cache holds without preemption."""
