-- A run in tables, as commands print them and the page shows them.

-- name: run
-- One run's row of run_summary.
select * from run_summary where run_id = $run_id;

-- name: quality
-- Quality before and after. measure | num_queries | first_stage | reranked
select
    measure,
    any_value(num_queries) as num_queries,
    max(value) filter (ranking = 'first_stage') as first_stage,
    max(value) filter (ranking = 'reranked') as reranked
from metrics
where run_id = $run_id and query_id is null
group by measure
order by measure;

-- name: serving
-- One run's row of serving_benchmark, and what the rules of tasks/engine/benchmark_table.py need beside it.
-- mean_output_tokens: of requests with a latency | length_tpot_covariance_s: of answer length and TPOT, per request
select
    serving_benchmark.*,
    lengths.*
from serving_benchmark
cross join (
    select
        avg(output_tokens) filter (e2el_s is not null) as mean_output_tokens,
        covar_pop(output_tokens, tpot_s) * count(tpot_s) / nullif(count(e2el_s), 0) as length_tpot_covariance_s
    from windows
    where run_id = $run_id
) as lengths
where serving_benchmark.run_id = $run_id;

-- name: budget
-- How the KV cache was used. *_blocks, blocks_*: KV-cache blocks | seqs_at_once: sequences | cache_share: of the cache | *_tokens: tokens
-- blocks_at_once, seqs_at_once: estimates, the largest batch's | most_blocks_in_use: measured, null without [packing] timeline
select
    any_value(runs.num_gpu_blocks) as num_gpu_blocks,
    any_value(runs.block_size) as block_size,
    (select max(blocks_used) from engine_steps where run_id = $run_id) as most_blocks_in_use,
    max(kv.blocks_at_once) as blocks_at_once,
    max(kv.cache_share) as cache_share,
    max(kv.seqs_at_once) as seqs_at_once,
    string_agg(distinct kv.limited_by, ', ' order by kv.limited_by) as limited_by,
    any_value(runs.max_num_seqs) as max_num_seqs,
    any_value(runs.max_num_batched_tokens) as max_num_batched_tokens,
    count(*) as num_batches,
    max(kv.blocks_committed_together) as blocks_committed_together,
    sum(kv.last_block_waste_tokens)::bigint as last_block_waste_tokens,
    sum(kv.num_preemptions)::bigint as num_preemptions
from kv_budget_use as kv
join runs using (run_id)
where kv.run_id = $run_id
group by kv.run_id;

-- name: volumes
-- How large the run is against earlier published nights. quantity | number | usual_number | change | num_nights
select quantity, number, usual_number, change, num_nights
from volumes
where run_id = $run_id
order by quantity desc;

-- name: quarantine
-- Rows set aside, by reason. source | reason | num_rows
select source, reason, count(*) as num_rows
from quarantine
where run_id = $run_id
group by source, reason
order by source, reason;

-- name: checks
-- What the checks found. check_name | num_offending | share | max_share | passed | skip_reason
select check_name, num_offending, share, max_share, passed, skip_reason
from check_results
where run_id = $run_id
order by check_name;

-- name: canary_modes
-- The canaries by decode mode, where one was missed; the mode of the first places first. decode_mode | is_main
-- num_pairs | num_missed | missed: names | mean_margin
select
    canary_modes.decode_mode,
    canary_modes.decode_mode = runs.decode_mode as is_main,
    canary_modes.num_pairs,
    canary_modes.num_missed,
    (
        select list(split_part(canaries.pair, '/', 2) order by canaries.pair)
        from canaries
        where
            canaries.run_id = canary_modes.run_id
            and split_part(canaries.pair, '/', 1) = canary_modes.decode_mode
            and not canaries.passed
    ) as missed,
    canary_modes.mean_margin
from canary_modes
join runs using (run_id)
where run_id = $run_id and canary_modes.num_missed > 0
order by is_main desc, canary_modes.decode_mode;

-- name: id_masses
-- How likely the model finds what it is asked for, by decode mode, the least likely first: one-token modes only.
-- decode_mode | num_windows | mean_id_mass: probability at the answer's first token
select
    decode_mode,
    count(*) as num_windows,
    avg(id_mass) as mean_id_mass
from windows
where run_id = $run_id and id_mass is not null
group by decode_mode
order by mean_id_mass, decode_mode;

-- name: churn
-- What changed since the published night before, by cause. change: see the view churn | num_queries, num_new_firsts: queries
-- mean_*: null for new queries
select
    change,
    count(*) as num_queries,
    avg(overlap_at_10) filter (change <> 'new_query') as mean_overlap_at_10,
    avg(rbo) as mean_rbo,
    count(*) filter (num_moved > 0 and change <> 'new_query') as num_reordered,
    count(*) filter (has_new_first and change <> 'new_query') as num_new_firsts
from churn
where run_id = $run_id
group by change
order by change;

-- name: reuse_reasons
-- Why queries were ranked rather than reused, where reuse was looked for. reuse_reason | num_queries | first_query_id
select reuse_reason, count(*) as num_queries, min(query_id) as first_query_id
from rankings
where run_id = $run_id and reuse_reason is not null
group by reuse_reason
order by num_queries desc, reuse_reason;

-- name: before_after
-- The first ten rows of the first query that the model ranked, in this run or an earlier one. query_id | rank | before, after: doc_id | came_from: first-stage rank
with one_query as (
    select query_id
    from rankings
    where run_id = $run_id and (num_windows > 0 or (status = 'reused' and num_candidates > 1))
    order by query_id
    limit 1
),

rows as (
    select all_scores.*
    from all_scores
    semi join one_query using (query_id)
    where run_id = $run_id
)

select
    after_.query_id,
    after_.rank,
    before_.doc_id as before,
    after_.doc_id as after,
    after_.first_stage_rank as came_from,
    after_.score,
    after_.model_score,
    after_.status
from rows as after_
join rows as before_ on before_.first_stage_rank = after_.rank
where after_.rank <= 10
order by after_.rank;

-- name: gains
-- What reranking did to the night's measure. measure | num_better, num_worse, num_equal: judged queries; values closer than 1e-9
-- are equal | num_queries: judged | first_stage, reranked: means
with differences as (
    select
        measure,
        query_id,
        max(value) filter (ranking = 'reranked') - max(value) filter (ranking = 'first_stage') as difference
    from metrics
    where run_id = $run_id and query_id is not null
    group by measure, query_id
),

counts as (
    select
        measure,
        count(*) filter (difference > 1e-9) as num_better,
        count(*) filter (difference < -1e-9) as num_worse,
        count(*) filter (abs(difference) <= 1e-9) as num_equal
    from differences
    group by measure
),

means as (
    select
        measure,
        any_value(num_queries) as num_queries,
        max(value) filter (ranking = 'first_stage') as first_stage,
        max(value) filter (ranking = 'reranked') as reranked
    from metrics
    where run_id = $run_id and query_id is null
    group by measure
)

select *
from counts
join means using (measure)
order by measure <> 'nDCG@10', measure
limit 1;

-- name: reordering
-- How far the new orders are from the first stage's. num_queries: with several candidates | num_new_firsts: of these
-- mean_overlap_at_10: share of the first ten that were among the first stage's
with by_query as (
    select
        query_id,
        bool_or(rank = 1 and first_stage_rank <> 1) as has_new_first,
        count(*) filter (rank <= 10 and first_stage_rank <= 10) / count(*) filter (rank <= 10) as overlap_at_10
    from all_scores
    where run_id = $run_id and (rank <= 10 or first_stage_rank <= 10)
    group by query_id
    having count(*) > 1
)

select
    count(*) as num_queries,
    count(*) filter (has_new_first) as num_new_firsts,
    avg(overlap_at_10) as mean_overlap_at_10
from by_query;

-- name: first_three
-- The first three of the first query whose first three moved, else of the first query. query_id | rank | before, after:
-- doc_id | first_stage, reranked: the query's nDCG@10, null without judgments
with one_query as (
    select
        query_id,
        bool_or(rank is distinct from first_stage_rank) as has_moved
    from all_scores
    where run_id = $run_id and (rank <= 3 or first_stage_rank <= 3)
    group by query_id
    having count(*) > 1
    order by has_moved desc, query_id
    limit 1
),

rows as (
    select query_id, doc_id, rank, first_stage_rank
    from all_scores
    semi join one_query using (query_id)
    where run_id = $run_id and (rank <= 3 or first_stage_rank <= 3)
),

quality as (
    select
        max(value) filter (ranking = 'first_stage') as first_stage,
        max(value) filter (ranking = 'reranked') as reranked
    from metrics
    semi join one_query using (query_id)
    where run_id = $run_id and measure = 'nDCG@10'
)

select
    after_.query_id,
    after_.rank,
    before_.doc_id as before,
    after_.doc_id as after,
    quality.first_stage,
    quality.reranked
from rows as after_
join rows as before_ on before_.first_stage_rank = after_.rank
cross join quality
order by after_.rank;
