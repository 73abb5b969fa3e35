-- A run's page: charts and lists that a terminal has no room for.

-- name: churn
-- What changed since the published run before; no row where there is none. Counts are queries
-- mean_*: over the queries of both nights | changed_most: the ten of these that changed most
with common as materialized (
    select query_id, change, overlap_at_10, rbo, num_moved, has_new_first
    from churn
    where run_id = $run_id and change <> 'new_query'
),

our_queries as (
    select query_id from rankings where run_id = $run_id
),

their_queries as (
    select rankings.query_id
    from previous_runs
    join rankings on rankings.run_id = previous_runs.previous_run_id
    where previous_runs.run_id = $run_id
),

changed_most as (
    select query_id, change, overlap_at_10, rbo, num_moved, has_new_first
    from common
    where num_moved > 0
    order by overlap_at_10, num_moved desc, query_id
    limit 10
)

select
    previous_run_id,
    (select count(*) from our_queries semi join their_queries using (query_id)) as num_common_queries,
    (select count(*) from our_queries anti join their_queries using (query_id)) as num_new_queries,
    (select count(*) from their_queries anti join our_queries using (query_id)) as num_gone_queries,
    (select avg(overlap_at_10) from common) as mean_overlap_at_10,
    (select avg(rbo) from common) as mean_rbo,
    (select count(*) from common where has_new_first) as num_new_firsts,
    (
        select list(changed_most order by overlap_at_10, num_moved desc, query_id) from changed_most
    ) as changed_most
from previous_runs
where run_id = $run_id;

-- name: latency_quantiles
-- The distribution of each latency over a run's requests: 201 quantiles from 0 to 1, so that any night fits. seconds
select
    quantile_cont(ttft_s, [place / 200.0 for place in range(201)]) as ttft_s,
    quantile_cont(queue_s, [place / 200.0 for place in range(201)]) as queue_s,
    quantile_cont(e2el_s, [place / 200.0 for place in range(201)]) as e2el_s
from windows
where run_id = $run_id;

-- name: parse_statuses
-- What a run's answers were like. parse_status: see windows.parse_status | num_windows | num_repeats: asked again
select parse_status, count(*) as num_windows, count(*) filter (attempt > 0) as num_repeats
from windows
where run_id = $run_id
group by parse_status
order by num_windows desc, parse_status;

-- name: timeline
-- The engine's steps of a run's first shard in at most $max_points points, each with the maxima of its steps.
-- since_start_s, until_s: seconds | scheduled_seqs, waiting_seqs: sequences | blocks_used: KV-cache blocks
-- made_tables: block tables so far | used_places, wasted_places: in blocks, tokens | num_steps: of the whole timeline
with numbered as (
    select
        engine_steps.*,
        row_number() over (order by batch_no, step) - 1 as place,
        count(*) over () as num_steps,
        min(engine_steps.started_at) over () as first_at,
        sum(num_new_seqs) over (order by batch_no, step) as made_tables,
        blocks_used * runs.block_size as places
    from engine_steps
    join runs using (run_id)
    where
        run_id = $run_id
        and shard = (select min(shard) from engine_steps where run_id = $run_id)
)

select
    min(date_diff('microsecond', first_at, started_at)) / 1e6 as since_start_s,
    max(date_diff('microsecond', first_at, started_at) / 1e6 + elapsed_ms / 1000) as until_s,
    max(num_prefill_seqs + num_decode_seqs) as scheduled_seqs,
    max(num_waiting_seqs) as waiting_seqs,
    max(blocks_used) as blocks_used,
    max(made_tables)::bigint as made_tables,
    max(least(stored_tokens, places)) as used_places,
    max(places - least(stored_tokens, places)) as wasted_places,
    any_value(num_steps) as num_steps
from numbered
group by place * least($max_points, num_steps) // num_steps
order by since_start_s;

-- name: batches
-- How each batch used the KV cache, in at most $max_points points of neighbouring batches. first_batch: number of the
-- point's first batch | blocks_at_once: estimated, the point's largest | cache_blocks: the engine's | *_share: of its tokens |
-- num_batches: of the run
with numbered as (
    select
        batches.*,
        kv.blocks_at_once,
        kv.cache_blocks,
        row_number() over (order by shard, batch_no) - 1 as place,
        count(*) over () as num_batches
    from batches
    join kv_budget_use as kv using (run_id, shard, batch_no)
    where run_id = $run_id
)

select
    min(place) as first_batch,
    max(blocks_at_once) as blocks_at_once,
    max(cache_blocks) as cache_blocks,
    sum(last_block_waste_tokens) / nullif(sum(prompt_tokens + output_tokens), 0) as waste_share,
    sum(cached_tokens) / nullif(sum(prompt_tokens), 0) as cached_share,
    any_value(num_batches) as num_batches
from numbered
group by place * least($max_points, num_batches) // num_batches
order by first_batch;

-- name: quality_by_query
-- One measure of each judged query before and after, best gain first. query_id | first_stage | reranked | difference
select
    query_id,
    max(value) filter (ranking = 'first_stage') as first_stage,
    max(value) filter (ranking = 'reranked') as reranked,
    reranked - first_stage as difference
from metrics
where run_id = $run_id and measure = $measure and query_id is not null
group by query_id
having count(distinct ranking) = 2
order by difference desc, query_id;

-- name: reordering
-- What reranking changed of the first stage's orders. num_queries: with two candidates or more | num_new_firsts: of these,
-- with another first document | mean_overlap_at_10: share of the first ten that were among the first ten before
with orders as (
    select
        query_id,
        bool_or(rank = 1 and first_stage_rank <> 1) as has_new_first,
        count(*) filter (rank <= 10 and first_stage_rank <= 10) / least(10, count(*)) as overlap_at_10
    from all_scores
    where run_id = $run_id
    group by query_id
    having count(*) > 1
)

select
    count(*) as num_queries,
    count(*) filter (has_new_first) as num_new_firsts,
    avg(overlap_at_10) as mean_overlap_at_10
from orders;

-- name: movers_by_quality
-- The five queries of a run whose measure gained most, and the five that lost most, best first. query_id
-- first_stage, reranked, difference: the measure's values
with differences as (
    select
        metrics.query_id,
        max(metrics.value) filter (metrics.ranking = 'first_stage') as first_stage,
        max(metrics.value) filter (metrics.ranking = 'reranked') as reranked,
        reranked - first_stage as difference
    from metrics
    semi join rankings on rankings.run_id = metrics.run_id and rankings.query_id = metrics.query_id
    where metrics.run_id = $run_id and metrics.measure = $measure
    group by metrics.query_id
    having count(distinct metrics.ranking) = 2 and difference <> 0
)

select query_id, first_stage, reranked, difference
from differences
qualify row_number() over (partition by difference > 0 order by abs(difference) desc, query_id) <= 5
order by difference desc, query_id;

-- name: movers_by_rank
-- The ten queries of a run whose first ten came from furthest. query_id | distance: places, summed over the first ten
select query_id, sum(abs(first_stage_rank - rank))::bigint as distance
from all_scores
where run_id = $run_id and rank <= 10
group by query_id
having distance > 0
order by distance desc, query_id
limit 10;

-- name: first_tens
-- The first ten of some queries, of both orders. query_id | doc_id | rank | first_stage_rank | status
select query_id, doc_id, rank, first_stage_rank, status
from all_scores
where
    run_id = $run_id
    and query_id in (select unnest($query_ids::varchar[]))
    and (rank <= 10 or first_stage_rank <= 10)
order by query_id, rank;
