"""Commands beside the night: plan, bench, doctor, the sample model."""
