-- The table that `vllm bench serve` prints, one row a run, in its order; durations in seconds.
-- Percentiles are over all requests of the run (windows), those of ITL over the merged histograms (within 0.5 %).
create or replace view serving_benchmark as
with shard_totals as (
    select
        run_id,
        shard,
        sum(num_prompts)::bigint as num_prompts,
        sum(engine_s) as engine_s,
        sum(prompt_tokens)::bigint as prompt_tokens,
        sum(output_tokens)::bigint as output_tokens,
        sum(itl_count)::bigint as itl_count,
        sum(itl_sum_s) as itl_sum_s
    from batches
    group by run_id, shard
),

totals as (
    select
        run_id,
        sum(num_prompts)::bigint as num_prompts,
        max(engine_s) as duration_s,
        sum(prompt_tokens)::bigint as prompt_tokens,
        sum(output_tokens)::bigint as output_tokens,
        sum(itl_sum_s) / nullif(sum(itl_count), 0) as mean_itl_s
    from shard_totals
    group by run_id
),

request_latencies as (
    select
        run_id,
        avg(ttft_s) as mean_ttft_s,
        quantile_cont(ttft_s, 0.5) as median_ttft_s,
        quantile_cont(ttft_s, 0.99) as p99_ttft_s,
        avg(tpot_s) as mean_tpot_s,
        quantile_cont(tpot_s, 0.5) as median_tpot_s,
        quantile_cont(tpot_s, 0.99) as p99_tpot_s,
        avg(e2el_s) as mean_e2el_s,
        quantile_cont(e2el_s, 0.5) as median_e2el_s,
        quantile_cont(e2el_s, 0.99) as p99_e2el_s,
        avg(queue_s) as mean_queue_s,
        quantile_cont(queue_s, 0.5) as median_queue_s,
        quantile_cont(queue_s, 0.99) as p99_queue_s
    from windows
    group by run_id
),

gaps as (
    select run_id, unnest(itl_bins) as bin, unnest(itl_bin_counts)::bigint as num_gaps
    from batches
),

gap_ranks as (
    select
        run_id,
        bin,
        sum(sum(num_gaps)) over (partition by run_id order by bin) as num_up_to,
        sum(sum(num_gaps)) over (partition by run_id) as num_all
    from gaps
    group by run_id, bin
),

gap_percentiles as (
    select
        run_id,
        pow(1.01, min(bin) filter (num_up_to >= 0.5 * num_all)) as median_itl_s,
        pow(1.01, min(bin) filter (num_up_to >= 0.99 * num_all)) as p99_itl_s
    from gap_ranks
    group by run_id
)

select
    runs.run_id,
    runs.name,
    runs.night,
    totals.num_prompts as successful_requests,
    totals.duration_s,
    totals.prompt_tokens as total_input_tokens,
    totals.output_tokens as total_generated_tokens,
    totals.num_prompts / nullif(totals.duration_s, 0) as requests_per_s,
    totals.output_tokens / nullif(totals.duration_s, 0) as output_tokens_per_s,
    (totals.prompt_tokens + totals.output_tokens) / nullif(totals.duration_s, 0) as total_tokens_per_s,
    request_latencies.mean_ttft_s,
    request_latencies.median_ttft_s,
    request_latencies.p99_ttft_s,
    request_latencies.mean_tpot_s,
    request_latencies.median_tpot_s,
    request_latencies.p99_tpot_s,
    totals.mean_itl_s,
    gap_percentiles.median_itl_s,
    gap_percentiles.p99_itl_s,
    request_latencies.mean_e2el_s,
    request_latencies.median_e2el_s,
    request_latencies.p99_e2el_s,
    request_latencies.mean_queue_s,
    request_latencies.median_queue_s,
    request_latencies.p99_queue_s
from runs
join totals using (run_id)
left join request_latencies using (run_id)
left join gap_percentiles using (run_id)
where totals.num_prompts > 0;

comment on view serving_benchmark is 'The rows of vllm bench serve for each run that asked the engine, plus queue time. Arrival is the hand-over of the batch.';
comment on column serving_benchmark.run_id is 'Run';
comment on column serving_benchmark.name is 'Series';
comment on column serving_benchmark.night is 'Logical date';
comment on column serving_benchmark.successful_requests is 'Requests answered: windows';
comment on column serving_benchmark.duration_s is 'Time inside engine calls, seconds; of the slowest shard';
comment on column serving_benchmark.total_input_tokens is 'Prompt tokens';
comment on column serving_benchmark.total_generated_tokens is 'Output tokens';
comment on column serving_benchmark.requests_per_s is 'Requests a second';
comment on column serving_benchmark.output_tokens_per_s is 'Output tokens a second';
comment on column serving_benchmark.total_tokens_per_s is 'Prompt and output tokens a second';
comment on column serving_benchmark.mean_ttft_s is 'Time to first token, mean, seconds';
comment on column serving_benchmark.median_ttft_s is 'Time to first token, median, seconds';
comment on column serving_benchmark.p99_ttft_s is 'Time to first token, 99th percentile, seconds';
comment on column serving_benchmark.mean_tpot_s is 'Time per output token after the first, mean, seconds; null for one-token answers';
comment on column serving_benchmark.median_tpot_s is 'Time per output token, median, seconds';
comment on column serving_benchmark.p99_tpot_s is 'Time per output token, 99th percentile, seconds';
comment on column serving_benchmark.mean_itl_s is 'Inter-token latency, mean, seconds; null for one-token answers';
comment on column serving_benchmark.median_itl_s is 'Inter-token latency, median, seconds, within 0.5 %';
comment on column serving_benchmark.p99_itl_s is 'Inter-token latency, 99th percentile, seconds, within 0.5 %';
comment on column serving_benchmark.mean_e2el_s is 'End-to-end latency, mean, seconds';
comment on column serving_benchmark.median_e2el_s is 'End-to-end latency, median, seconds';
comment on column serving_benchmark.p99_e2el_s is 'End-to-end latency, 99th percentile, seconds';
comment on column serving_benchmark.mean_queue_s is 'Queue time, mean, seconds';
comment on column serving_benchmark.median_queue_s is 'Queue time, median, seconds';
comment on column serving_benchmark.p99_queue_s is 'Queue time, 99th percentile, seconds';
