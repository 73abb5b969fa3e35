-- One row a batch: the unit of commit and of statistics.
create table batches (
    run_id varchar not null,
    shard integer not null,
    batch_no integer not null,
    driver varchar not null,
    min_round integer,
    max_round integer,
    num_prompts integer not null,
    prompt_tokens bigint not null,
    cached_tokens bigint not null,
    output_tokens bigint not null,
    num_blocks bigint not null,
    block_budget bigint not null,
    last_block_waste_tokens bigint not null,
    num_preemptions bigint not null,
    submitted_at timestamptz not null,
    finished_at timestamptz not null,
    engine_s double not null,
    queue_mean_s double,
    queue_p50_s double,
    queue_p99_s double,
    ttft_mean_s double,
    ttft_p50_s double,
    ttft_p99_s double,
    tpot_mean_s double,
    tpot_p50_s double,
    tpot_p99_s double,
    e2el_mean_s double,
    e2el_p50_s double,
    e2el_p99_s double,
    itl_count bigint,
    itl_sum_s double,
    itl_p50_s double,
    itl_p99_s double,
    itl_bins smallint[],
    itl_bin_counts uinteger[],
    used_blocks bigint,
    primary key (run_id, shard, batch_no)
);

comment on table batches is 'One row a batch: prompts committed together with their windows, rankings and scores. Driver generate sends them in one call; driver stream one by one, and batches overlap in time.';
comment on column batches.run_id is 'Run';
comment on column batches.shard is 'Shard of the run, 0 where it is not sharded';
comment on column batches.batch_no is 'Counts from 0 within run and shard';
comment on column batches.driver is 'stream: each prompt joined the engine when there was room; generate: one LLM.generate call; none: queries that needed no call, and the rows set aside; lost: a batch that a restored backup lacked, what it had was computed again';
comment on column batches.min_round is 'Smallest round of its windows; null without prompts';
comment on column batches.max_round is 'Largest round of its windows; null without prompts';
comment on column batches.num_prompts is 'Prompts, one a window';
comment on column batches.prompt_tokens is 'Tokens of its prompts';
comment on column batches.cached_tokens is 'Prompt tokens found in the prefix cache';
comment on column batches.output_tokens is 'Tokens generated';
comment on column batches.num_blocks is 'KV-cache blocks that its prompts may need, as packed: for each the most that it may hold at once, over all cache groups of the model; with full attention alone, ceil((prompt + max. answer) / block_size)';
comment on column batches.block_budget is 'KV-cache blocks that it could hold: usable blocks less headroom, with driver generate times the loads of one call';
comment on column batches.last_block_waste_tokens is 'Empty token places in the last block of each of its sequences, in every cache group with attention, summed';
comment on column batches.num_preemptions is 'Times that the engine gave up a sequence''s blocks and computed it again; 0 by the budget''s promise';
comment on column batches.submitted_at is 'Its first prompt went to the engine, UTC';
comment on column batches.finished_at is 'Its last prompt was answered, UTC';
comment on column batches.engine_s is 'Seconds inside the engine''s calls, monotonic clock; with driver stream each step counts for the oldest batch then open, so that a run''s sum counts none twice';
comment on column batches.queue_mean_s is 'Queue time (queued to scheduled) of its requests, mean, seconds';
comment on column batches.queue_p50_s is 'Queue time, median, seconds';
comment on column batches.queue_p99_s is 'Queue time, 99th percentile, seconds';
comment on column batches.ttft_mean_s is 'Time to first token (arrival to first token), mean, seconds';
comment on column batches.ttft_p50_s is 'Time to first token, median, seconds';
comment on column batches.ttft_p99_s is 'Time to first token, 99th percentile, seconds';
comment on column batches.tpot_mean_s is 'Time per output token after the first, mean over requests, seconds; null for one-token answers';
comment on column batches.tpot_p50_s is 'Time per output token, median, seconds';
comment on column batches.tpot_p99_s is 'Time per output token, 99th percentile, seconds';
comment on column batches.e2el_mean_s is 'End-to-end latency (arrival to last token), mean, seconds';
comment on column batches.e2el_p50_s is 'End-to-end latency, median, seconds';
comment on column batches.e2el_p99_s is 'End-to-end latency, 99th percentile, seconds';
comment on column batches.itl_count is 'Gaps between two tokens of one request; null for one-token answers; with driver stream those of the steps that count for it';
comment on column batches.itl_sum_s is 'Sum of those gaps (inter-token latencies), seconds';
comment on column batches.itl_p50_s is 'Inter-token latency, median, seconds';
comment on column batches.itl_p99_s is 'Inter-token latency, 99th percentile, seconds';
comment on column batches.itl_bins is 'Histogram of the gaps: bin b holds those of about 1.01^b seconds (within 0.5 %)';
comment on column batches.itl_bin_counts is 'Gaps in each bin of itl_bins';
comment on column batches.used_blocks is 'KV-cache blocks of its sequences, the most that each had at once for its prompt and the answer that it gave, summed; null in a lost batch';
