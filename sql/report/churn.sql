-- What changed since the published run before; its numbers are those of the view churn, which reads all nights (4 s for six
-- of 2 million candidates, while nobody else gets the database). Counts are queries
-- mean_overlap_at_10: over the queries of both nights | changed_most: the ten of these that changed most
with ours as (
    select rankings.query_id, scores.doc_id, scores.rank
    from rankings
    join scores on scores.run_id = rankings.scores_run_id and scores.query_id = rankings.query_id
    where rankings.run_id = $run_id
),

theirs as (
    select rankings.query_id, scores.doc_id, scores.rank
    from rankings
    join scores on scores.run_id = rankings.scores_run_id and scores.query_id = rankings.query_id
    where rankings.run_id = $previous_run_id
),

common as materialized (
    select
        ours.query_id,
        count(*) filter (ours.rank <= 10 and theirs.rank <= 10) / least(10, count(*)) as overlap_at_10,
        count(*) filter (ours.rank is distinct from theirs.rank) as num_moved,
        coalesce(bool_or(ours.rank = 1 and theirs.rank is distinct from 1), false) as has_new_first
    from ours
    left join theirs using (query_id, doc_id)
    semi join (select query_id from rankings where run_id = $previous_run_id) as had using (query_id)
    group by ours.query_id
),

our_queries as (
    select query_id from rankings where run_id = $run_id
),

their_queries as (
    select query_id from rankings where run_id = $previous_run_id
),

changed_most as (
    select query_id, overlap_at_10, num_moved, has_new_first
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
    (select count(*) from common where has_new_first) as num_new_firsts,
    (
        select list(changed_most order by overlap_at_10, num_moved desc, query_id) from changed_most
    ) as changed_most;
