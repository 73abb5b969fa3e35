-- What a query's windows answered. best_first: doc_ids | answer: the model's text where it was not a clean one
select
    outcomes.round,
    outcomes.window_no as window_no,
    outcomes.attempt,
    (
        select string_agg(scores.doc_id, ' ' order by shown.place)
        from (
            select unnest(outcomes.outcome_order) as doc, generate_subscripts(outcomes.outcome_order, 1) as place
        ) as shown
        join scores
            on scores.run_id = rankings.scores_run_id
            and scores.query_id = outcomes.query_id
            and scores.first_stage_rank = shown.doc + 1
    ) as best_first,
    outcomes.answer
from rankings
join outcomes on outcomes.run_id = rankings.scores_run_id and outcomes.query_id = rankings.query_id
where rankings.run_id = $run_id and rankings.query_id = $query_id
order by outcomes.round, outcomes.window_no, outcomes.attempt;
