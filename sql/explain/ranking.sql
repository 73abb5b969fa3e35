-- One query of a run. The columns of rankings that people ask about, and the cuts of all its windows
select
    rankings.status,
    rankings.num_candidates,
    rankings.depth,
    rankings.num_windows,
    rankings.num_rounds,
    rankings.scores_run_id,
    rankings.reuse_reason,
    (
        select sum(truncated_passages)::bigint
        from windows
        where windows.run_id = rankings.scores_run_id and windows.query_id = rankings.query_id
    ) as truncated_passages
from rankings
where run_id = $run_id and query_id = $query_id;
