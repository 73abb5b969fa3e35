-- What a run that goes on finds, and what it deletes and computes again where the database lacks batches.

-- name: list_loaded_batches
-- Batches of a run's shard that are in the database already. batch_no
select batch_no from batches where run_id = $run_id and shard = $shard;

-- name: find_progress
-- How far a shard of a run is. last_batch_no: -1 without one | missing_batches: numbers below it that no batch has
-- num_rankings: queries of the whole run that have their row
with loaded as (select batch_no from batches where run_id = $run_id and shard = $shard)

select
    (select coalesce(max(batch_no), -1) from loaded) as last_batch_no,
    (
        select coalesce(list(numbers.range::integer order by numbers.range), [])
        from range((select coalesce(max(batch_no), 0) from loaded)) as numbers
        where numbers.range not in (select batch_no from loaded)
    ) as missing_batches,
    (select count(*) from rankings where run_id = $run_id) as num_rankings;

-- name: find_torn_queries
-- Queries of a run that have some of their rows and lack others; one without its ranking counts, however many of its
-- windows are there: which ones it should have is not known. run_id | query_id
with asked as (
    select query_id, count(*) as num_windows
    from windows
    where run_id = $run_id
    group by query_id
),

scored as (
    select query_id, count(*) as num_scores
    from scores
    where run_id = $run_id
    group by query_id
),

ranked as (
    select query_id, num_windows, num_candidates
    from rankings
    where run_id = $run_id and scores_run_id = $run_id
)

select $run_id as run_id, query_id
from asked
full join scored using (query_id)
full join ranked using (query_id)
where
    coalesce(asked.num_windows, 0) is distinct from ranked.num_windows
    or coalesce(scored.num_scores, 0) is distinct from ranked.num_candidates;

-- name: list_queries
-- The queries of a run of which any row is there. run_id | query_id
select distinct $run_id as run_id, query_id
from (
    select query_id from rankings where run_id = $run_id
    union all
    select query_id from windows where run_id = $run_id
    union all
    select query_id from quarantine where run_id = $run_id
);

-- name: delete_torn_queries
-- Deletes every row of the queries of torn.
delete from scores where (run_id, query_id) in (select run_id, query_id from torn);
delete from rankings where (run_id, query_id) in (select run_id, query_id from torn);
delete from windows where (run_id, query_id) in (select run_id, query_id from torn);
delete from outcomes where (run_id, query_id) in (select run_id, query_id from torn);

-- name: delete_shard
-- Deletes the batches of the shard of gone, and the rows set aside of the queries of torn, which are its own.
delete from batches where (run_id, shard) in (select run_id, shard from gone);
delete from engine_steps where (run_id, shard) in (select run_id, shard from gone);
delete from quarantine
where exists (
    select 1
    from torn
    where torn.run_id = quarantine.run_id and torn.query_id is not distinct from quarantine.query_id
);

-- name: note_lost_batches
-- Puts a row without prompts in the place of each missing batch, so that a gap is met once; batch 0 is committed again.
insert into batches by name
select
    $run_id as run_id,
    $shard as shard,
    range as batch_no,
    'lost' as driver,
    0 as num_prompts,
    0 as prompt_tokens,
    0 as cached_tokens,
    0 as output_tokens,
    0 as num_blocks,
    0 as block_budget,
    0 as last_block_waste_tokens,
    0 as num_preemptions,
    now() as submitted_at,
    now() as finished_at,
    0 as engine_s
from range(1, (select coalesce(max(batch_no), 1) from batches where run_id = $run_id and shard = $shard))
where range not in (select batch_no from batches where run_id = $run_id and shard = $shard);

-- name: list_ranked_queries
-- Queries of a run that have their row already, within a span of ids. query_id
select query_id from rankings where run_id = $run_id and query_id between $first_query_id and $last_query_id;

-- name: list_outcomes
-- What a run's windows answered, within a span of query ids, in the order of replay.
-- query_id | round | window_no | attempt | outcome_order | outcome_logprobs | num_listed
select
    outcomes.query_id,
    outcomes.round,
    outcomes.window_no,
    outcomes.attempt,
    outcomes.outcome_order,
    outcomes.outcome_logprobs,
    windows.num_listed
from outcomes
join windows using (run_id, query_id, round, window_no, attempt)
where outcomes.run_id = $run_id and outcomes.query_id between $first_query_id and $last_query_id
order by outcomes.query_id, outcomes.round, outcomes.window_no, outcomes.attempt;
