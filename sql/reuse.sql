-- Whose rankings a night may take over.

-- name: match_queries
-- How the queries of `incoming` stand against an earlier run: its rows are this run's too where nothing changed.
-- query_id | reuse_reason: null where reused | scores_run_id: the run that computed the rows
select
    incoming.query_id,
    case
        when earlier.query_id is null then 'first seen'
        when earlier.recipe_digest <> incoming.recipe_digest then $recipe_change
        when earlier.query_digest <> incoming.query_digest then 'text changed'
        when
            earlier.candidates_digest <> incoming.candidates_digest
            or earlier.depth <> incoming.depth  -- the first stage's scores may say how deep a list is ranked
            then 'candidates changed'
        when earlier.documents_digest <> incoming.documents_digest then 'document changed'
        when earlier.status not in ('ranked', 'single', 'reused') then 'fell back last time'
    end as reuse_reason,
    earlier.scores_run_id
from incoming
left join rankings as earlier on earlier.run_id = $earlier_run_id and earlier.query_id = incoming.query_id;

-- name: list_rankings
-- What an earlier run's queries were ranked on, for shards that match theirs with it. The columns of rankings
select * from rankings where run_id = $earlier_run_id;

-- name: count_set_aside
-- Queries of a run that a repetition would ask again: fell back, in part or whole, or the engine died of them. num_queries
select count(*) as num_queries
from rankings
where
    run_id = $run_id
    and (status in ('partial', 'fallback') or (status = 'quarantined' and num_candidates > 0));
