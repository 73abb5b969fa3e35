"""Strategies around strategies: fewer candidates first, or every window several times."""
