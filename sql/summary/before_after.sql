-- The first ten rows of the first query that the model ranked, in this run or an earlier one. query_id | rank | before, after: doc_id | came_from: first-stage rank
with one_query as (
    select query_id, scores_run_id
    from rankings
    where run_id = $run_id and (num_windows > 0 or (status = 'reused' and num_candidates > 1))
    order by query_id
    limit 1
),

rows as (
    select scores.*
    from scores
    join one_query on scores.query_id = one_query.query_id and scores.run_id = one_query.scores_run_id
)

select
    after_.query_id,
    after_.rank,
    before_.doc_id as before,
    after_.doc_id as after,
    after_.first_stage_rank as came_from,
    after_.score,
    after_.model_score,
    after_.status
from rows as after_
join rows as before_ on before_.first_stage_rank = after_.rank
where after_.rank <= 10
order by after_.rank;
