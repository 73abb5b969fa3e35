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
