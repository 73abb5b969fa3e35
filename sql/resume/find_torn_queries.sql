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
