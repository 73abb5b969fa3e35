-- Queries of which a candidate has no score row, or two. query_id | num_offending: 1
with rows as (
    select query_id, count(*) as num_rows, count(distinct doc_id) as num_docs
    from scores
    where run_id = $run_id
    group by query_id
)

select rankings.query_id, 1 as num_offending
from rankings
left join rows using (query_id)
where
    rankings.run_id = $run_id
    and rankings.scores_run_id = $run_id
    and (
        coalesce(rows.num_rows, 0) <> rankings.num_candidates
        or coalesce(rows.num_docs, 0) <> rankings.num_candidates
    )
order by rankings.query_id;
