-- What one arm of a study took. One row: sequences | tokens | blocks | steps | seconds; null without a timeline
with run as (
    select run_id, block_size, max_num_seqs, max_num_batched_tokens, num_gpu_blocks from runs where run_id = $run_id
),

sequences as (
    select
        count(*) as num_sequences,
        sum(windows.prompt_tokens)::bigint as prompt_tokens,
        sum(windows.cached_tokens)::bigint as cached_tokens,
        sum(windows.output_tokens)::bigint as output_tokens,
        max(windows.prompt_tokens) as longest_prompt_tokens,
        sum(ceil((windows.prompt_tokens + windows.output_tokens - 1) / run.block_size))::bigint as blocks_used,
        sum(
            ceil((windows.prompt_tokens + windows.output_tokens - 1) / run.block_size)::bigint * run.block_size
            - (windows.prompt_tokens + windows.output_tokens - 1)
        )::bigint as last_block_waste_tokens,
        avg(windows.queue_s) as mean_queue_s,
        quantile_cont(windows.queue_s, 0.99) as p99_queue_s,
        avg(windows.ttft_s) as mean_ttft_s
    from windows
    cross join run
    where windows.run_id = $run_id
),

calls as (
    select
        sum(num_blocks)::bigint as predicted_blocks,
        sum(last_block_waste_tokens)::bigint as counted_waste_tokens,
        sum(engine_s) as engine_s,
        sum(num_preemptions)::bigint as num_preemptions
    from batches
    where run_id = $run_id
),

steps as (
    select
        count(*) as num_steps,
        max(num_prefill_seqs + num_decode_seqs) as max_scheduled_seqs,
        max(num_waiting_seqs) as max_waiting_seqs,
        count(*) filter (
            num_prefill_seqs + num_decode_seqs = run.max_num_seqs and num_waiting_seqs > 0
        ) as num_full_steps,
        max(blocks_used) as peak_blocks_used,
        sum(prefill_tokens)::bigint as prefill_tokens,
        sum(decode_tokens)::bigint as decode_tokens
    from engine_steps
    cross join run
    where engine_steps.run_id = $run_id
),

quality as (
    select
        avg(value) as ndcg_at_10,
        stddev_samp(value) / sqrt(count(*)) as ndcg_standard_error,
        count(*) as num_judged
    from metrics
    where run_id = $run_id and ranking = 'reranked' and measure = 'nDCG@10' and query_id is not null
)

select *
from run
cross join sequences
cross join calls
cross join steps
cross join quality;
