-- The runs, newest first. elapsed_s, engine_s: seconds; mean_id_mass: below 0.5 the model prefers answers that were not asked for
select
    run_id,
    status,
    date_trunc('second', started_at) as started_at,
    elapsed_s,
    engine_s,
    num_queries,
    num_ranked_queries,
    num_fallback_queries,
    mean_id_mass,
    num_candidates,
    num_quarantined_candidates,
    error
from run_summary
order by run_summary.started_at desc;
