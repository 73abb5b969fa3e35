-- Batches of the driver that streams: prompts that are committed together, not one call of the engine.
comment on table batches is 'One row a batch: prompts committed together with their windows, rankings and scores. Driver generate sends them in one call; driver stream one by one, and batches overlap in time.';
comment on column batches.driver is 'stream: each prompt joined the engine when there was room; generate: one LLM.generate call; none: queries that needed no call, and the rows set aside; lost: a batch that a restored backup lacked, what it had was computed again';
comment on column batches.block_budget is 'KV-cache blocks that it could hold: usable blocks less headroom, with driver generate times the loads of one call';
comment on column batches.submitted_at is 'Its first prompt went to the engine, UTC';
comment on column batches.finished_at is 'Its last prompt was answered, UTC';
comment on column batches.engine_s is 'Seconds inside the engine''s calls, monotonic clock; with driver stream each step counts for the oldest batch then open, so that a run''s sum counts none twice';
comment on column batches.itl_count is 'Gaps between two tokens of one request; null for one-token answers; with driver stream those of the steps that count for it';
