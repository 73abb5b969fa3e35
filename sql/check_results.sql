-- What the checks of a run found; the checks themselves are files of sql/checks.

-- name: count_totals
-- What the checks' shares are of; 0 or null where there is nothing to check.
-- queries | whole_queries: the same, 0 of a trial | candidates: those set aside included
-- passages: over all windows | batches
-- scored_queries: with four numbers of the model | ranked_queries: with four ranked documents
-- canaries: of the decode mode that does worst
-- banded_canaries: with three earlier nights | steady_places: of the first tens of queries that nothing changed for
-- volumes: queries and candidates, where there is an earlier night
with documents as (
    select
        query_id,
        count(model_score) filter (score_kind in ('reciprocal_rank', 'p_yes', 'query_likelihood')) as num_scored,
        count(*) filter (status = 'ranked') as num_ranked
    from scores
    where run_id = $run_id
    group by query_id
),

steady as (
    select count(*) as num_queries, sum(least(10, num_candidates))::bigint as num_places
    from churn
    where run_id = $run_id and change in ('moved', 'unchanged')
)

select
    (select count(*) from rankings where run_id = $run_id) as queries,
    (
        select count(*)
        from rankings
        join runs using (run_id)
        where run_id = $run_id and not coalesce(runs.is_limited, false)
    ) as whole_queries,
    (select num_candidates from runs where run_id = $run_id)
    + (select count(*) from quarantine where run_id = $run_id and source = 'candidates') as candidates,
    (select coalesce(sum(len(docs)), 0)::bigint from windows where run_id = $run_id) as passages,
    (select count(*) from batches where run_id = $run_id and num_prompts > 0) as batches,
    (select count(*) from documents where num_scored >= 4) as scored_queries,
    (select count(*) from documents where num_ranked >= 4) as ranked_queries,
    (select num_pairs from canary_modes where run_id = $run_id and is_worst) as canaries,
    (select count(*) from canary_bands where run_id = $run_id and num_nights >= 3) as banded_canaries,
    (select num_places from steady where num_queries >= 20) as steady_places,
    (select count(*) from volumes where run_id = $run_id) as volumes;

-- name: delete
-- Makes room for a repeated check.
delete from check_results where run_id = $run_id;

-- name: list_failed
-- The checks that a run failed. check_name | num_offending | share | max_share
select check_name, num_offending, share, max_share
from check_results
where run_id = $run_id and not passed
order by check_name;
