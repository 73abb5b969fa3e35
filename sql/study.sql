-- One arm of a study: figures, the engine's steps, quality.

-- name: arm
-- What one run of a study's arm took. One row: sequences | tokens | blocks and places | steps | seconds | phases
-- Null without a timeline. Free slots and blocks: the least, and the mean over the steps' time. Phases: steps of one kind.
with run as (
    select run_id, model, device, block_size, max_num_seqs, max_num_batched_tokens, num_gpu_blocks, started_at
    from runs
    where run_id = $run_id
),

sequences as (
    select
        count(*) as num_sequences,
        sum(windows.prompt_tokens)::bigint as prompt_tokens,
        sum(windows.cached_tokens)::bigint as cached_tokens,
        sum(windows.output_tokens)::bigint as output_tokens,
        max(windows.prompt_tokens) as longest_prompt_tokens,
        sum(windows.prompt_tokens + windows.output_tokens - 1)::bigint as used_places,
        sum(ceil((windows.prompt_tokens + windows.output_tokens - 1) / 16))::bigint as blocks_of_16,
        avg(windows.queue_s) as mean_queue_s,
        quantile_cont(windows.queue_s, 0.99) as p99_queue_s,
        avg(windows.ttft_s) as mean_ttft_s,
        avg(windows.e2el_s) as mean_e2el_s
    from windows
    where windows.run_id = $run_id
),

calls as (
    select
        sum(num_blocks)::bigint as predicted_blocks,
        sum(used_blocks)::bigint as blocks_used,
        sum(last_block_waste_tokens)::bigint as last_block_waste_tokens,
        sum(engine_s) as engine_s,
        sum(num_preemptions)::bigint as num_preemptions
    from batches
    where run_id = $run_id
),

timeline as (
    select
        engine_steps.*,
        engine_steps.num_prefill_seqs + engine_steps.num_decode_seqs as num_seqs,
        engine_steps.prefill_tokens + engine_steps.decode_tokens as num_tokens,
        run.max_num_seqs - engine_steps.num_prefill_seqs - engine_steps.num_decode_seqs as free_seqs,
        run.num_gpu_blocks - 1 - engine_steps.blocks_used as free_blocks,
        run.max_num_seqs,
        run.max_num_batched_tokens
    from engine_steps
    cross join run
    where engine_steps.run_id = $run_id
),

steps as (
    select
        count(*) as num_steps,
        max(num_seqs) as max_scheduled_seqs,
        max(num_waiting_seqs) as max_waiting_seqs,
        count(*) filter (num_seqs = max_num_seqs and num_waiting_seqs > 0) as num_full_steps,
        max(blocks_used) as peak_blocks_used,
        sum(prefill_tokens)::bigint as prefill_tokens,
        sum(decode_tokens)::bigint as decode_tokens,
        sum(elapsed_ms) as steps_ms,
        sum(schedule_ms + update_ms) as scheduler_ms,
        sum(block_table_ms) as block_table_ms,
        min(free_seqs) as least_free_seqs,
        sum(free_seqs * elapsed_ms) / sum(elapsed_ms) as mean_free_seqs,
        min(free_blocks) as least_free_blocks,
        sum(free_blocks * elapsed_ms) / sum(elapsed_ms) as mean_free_blocks,
        sum(elapsed_ms) filter (num_tokens >= 0.95 * max_num_batched_tokens) / sum(elapsed_ms) as full_tokens_share,
        sum(elapsed_ms) filter (num_waiting_seqs > 0) / sum(elapsed_ms) as waiting_share
    from timeline
),

phases as (
    select
        sum(elapsed_ms) filter (num_decode_seqs = 0) / 1000 as prefill_s,
        sum(num_tokens) filter (num_decode_seqs = 0)::bigint as prefill_only_tokens,
        count(*) filter (num_decode_seqs = 0) as prefill_steps,
        sum(elapsed_ms) filter (num_prefill_seqs = 0) / 1000 as decode_s,
        sum(num_tokens) filter (num_prefill_seqs = 0)::bigint as decode_only_tokens,
        count(*) filter (num_prefill_seqs = 0) as decode_steps,
        avg(stored_tokens / num_seqs) filter (num_prefill_seqs = 0) as mean_decode_context_tokens
    from timeline
),

quality as (
    select
        avg(value) as ndcg_at_10,
        count(*) as num_judged
    from metrics
    where run_id = $run_id and ranking = 'reranked' and measure = 'nDCG@10' and query_id is not null
)

select *
from run
cross join sequences
cross join calls
cross join steps
cross join phases
cross join quality;

-- name: first_steps
-- A run's first $num_steps engine steps. scheduled_seqs, waiting_seqs, new_seqs: sequences | num_tokens | blocks_used
select
    num_prefill_seqs + num_decode_seqs as scheduled_seqs,
    num_waiting_seqs as waiting_seqs,
    num_new_seqs as new_seqs,
    prefill_tokens + decode_tokens as num_tokens,
    blocks_used
from engine_steps
where run_id = $run_id
order by shard, batch_no, step
limit $num_steps;

-- name: full_steps
-- A run's steps that filled the engine's token budget to at least 95 %: equal tokens, other sequences.
-- num_seqs | scheduler_ms: inside schedule and update_from_output | elapsed_ms: of the whole step
select
    engine_steps.num_prefill_seqs + engine_steps.num_decode_seqs as num_seqs,
    engine_steps.schedule_ms + engine_steps.update_ms as scheduler_ms,
    engine_steps.elapsed_ms
from engine_steps
join runs using (run_id)
where
    engine_steps.run_id = $run_id
    and engine_steps.prefill_tokens + engine_steps.decode_tokens >= 0.95 * runs.max_num_batched_tokens
order by engine_steps.batch_no, engine_steps.step;

-- name: quality
-- A run's nDCG@10 by judged query, as reranked.
select query_id, value
from metrics
where run_id = $run_id and ranking = 'reranked' and measure = 'nDCG@10' and query_id is not null
order by query_id;
