"""A night's steps, in packages along the data's path: read, schedule, prompt, pack, generate, answer, keep, judge."""
