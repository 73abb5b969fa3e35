-- The runs, newest first. elapsed_s, engine_s: seconds
select
    run_id,
    status,
    started_at,
    elapsed_s,
    engine_s,
    num_queries,
    num_ranked_queries,
    num_fallback_queries,
    num_candidates,
    num_quarantined_candidates,
    error
from run_summary
order by started_at desc;
