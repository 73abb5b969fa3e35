-- What changed since the series' last published night; no row where there is none. Counts are queries
-- mean_overlap_at_10: over the queries that both have
with changes as (
    select * from churn where run_id = $run_id
),

previous as (
    select distinct previous_run_id as run_id from changes
),

ours as (
    select query_id from rankings where run_id = $run_id
),

theirs as (
    select rankings.query_id from rankings join previous using (run_id)
)

select
    previous.run_id as previous_run_id,
    (select count(*) from ours semi join theirs using (query_id)) as num_common_queries,
    (select count(*) from ours anti join theirs using (query_id)) as num_new_queries,
    (select count(*) from theirs anti join ours using (query_id)) as num_gone_queries,
    (select avg(overlap_at_10) from changes semi join theirs using (query_id)) as mean_overlap_at_10,
    (select count(*) from changes semi join theirs using (query_id) where has_new_first) as num_new_firsts
from previous;
