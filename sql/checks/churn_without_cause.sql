-- First-ten places that other documents took although neither input nor recipe changed; at least twenty such queries.
-- query_id | num_offending: places
with steady as (
    select query_id, num_candidates, overlap_at_10
    from churn
    where run_id = $run_id and change in ('moved', 'unchanged')
    qualify count(*) over () >= 20
)

select query_id, round((1 - overlap_at_10) * least(10, num_candidates))::integer as num_offending
from steady
where overlap_at_10 < 1
order by overlap_at_10, query_id;
