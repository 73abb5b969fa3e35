-- Queries whose score does not fall with every rank, as a 32-bit float. query_id | num_offending: 1
with steps as (
    select query_id, score, lag(score) over (partition by query_id order by rank) as score_before
    from scores
    where run_id = $run_id
)

select query_id, 1 as num_offending
from steps
group by query_id
having
    bool_or(score_before is not null and not (score::float < score_before::float))
    or bool_or(score is null or isnan(score) or isinf(score))
order by query_id;
