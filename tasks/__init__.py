"""What a night does, in rooms along the data's path: read, schedule, prompt, pack, generate, answer, keep, judge."""
