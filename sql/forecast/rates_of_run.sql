-- How fast a run's prompts were read, for three lengths of prompts.
-- mean_tokens: of a prompt | tokens_per_s | num_prompts | output_tokens | decode_mode, model_identity, device: of the run
with thirds as (
    select *, ntile(3) over (order by prompt_tokens / num_prompts) as third
    from batches
    where run_id = $run_id and num_prompts > 0 and engine_s > 0
)

select
    sum(thirds.prompt_tokens) / sum(thirds.num_prompts) as mean_tokens,
    sum(thirds.prompt_tokens) / sum(thirds.engine_s) as tokens_per_s,
    sum(thirds.num_prompts)::bigint as num_prompts,
    sum(thirds.output_tokens)::bigint as output_tokens,
    any_value(runs.decode_mode) as decode_mode,
    any_value(runs.model_identity) as model_identity,
    any_value(runs.device) as device
from thirds
join runs using (run_id)
group by thirds.third
order by mean_tokens;
