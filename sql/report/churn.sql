-- What changed since the published run before. Counts are queries
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
    select query_id from rankings where run_id = $previous_run_id
),

changed_most as (
    select query_id, change, overlap_at_10, rbo, num_moved, has_new_first
    from common
    where num_moved > 0
    order by overlap_at_10, num_moved desc, query_id
    limit 10
)

select
    $previous_run_id as previous_run_id,
    (select count(*) from our_queries semi join their_queries using (query_id)) as num_common_queries,
    (select count(*) from our_queries anti join their_queries using (query_id)) as num_new_queries,
    (select count(*) from their_queries anti join our_queries using (query_id)) as num_gone_queries,
    (select avg(overlap_at_10) from common) as mean_overlap_at_10,
    (select avg(rbo) from common) as mean_rbo,
    (select count(*) from common where has_new_first) as num_new_firsts,
    (
        select list(changed_most order by overlap_at_10, num_moved desc, query_id) from changed_most
    ) as changed_most;
