-- Tokens and engine time of each run. engine_s: seconds
select
    night,
    name,
    run_id,
    status,
    num_queries,
    num_windows,
    prompt_tokens,
    output_tokens,
    engine_s,
    prompt_tokens / nullif(num_queries, 0) as prompt_tokens_per_query,
    engine_s / nullif(num_queries, 0) as engine_s_per_query
from run_summary
order by night desc, name, run_id;
