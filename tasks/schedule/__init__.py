"""Which windows of a query's candidates are asked, round by round: indices only, pure and replayable."""
