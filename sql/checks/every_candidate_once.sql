-- Queries with a candidate that has no score row, or two; a reused query is checked in the run that ranked it.
-- query_id | num_offending: 1
with pointed as (
    select distinct query_id, scores_run_id
    from rankings
    where run_id = $run_id
),

rows as (
    select pointed.query_id, count(*) as num_rows, count(distinct scores.doc_id) as num_docs
    from pointed
    join scores on scores.run_id = pointed.scores_run_id and scores.query_id = pointed.query_id
    group by pointed.query_id
)

select rankings.query_id, 1 as num_offending
from rankings
left join rows using (query_id)
where
    rankings.run_id = $run_id
    and (
        coalesce(rows.num_rows, 0) <> rankings.num_candidates
        or coalesce(rows.num_docs, 0) <> rankings.num_candidates
    )
order by rankings.query_id;
