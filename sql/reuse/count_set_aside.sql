-- Queries of a run that a repetition would ask again: fell back, in part or whole, or the engine died of them. num_queries
select count(*) as num_queries
from rankings
where
    run_id = $run_id
    and (status in ('partial', 'fallback') or (status = 'quarantined' and num_candidates > 0));
