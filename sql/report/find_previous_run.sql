-- The published run before a published run in its series, as the view churn has it. run_id
with published as (
    select run_id, lag(run_id) over (partition by name order by night, published_at) as previous_run_id
    from runs
    where status = 'published'
)

select previous_run_id as run_id
from published
where run_id = $run_id and previous_run_id is not null;
