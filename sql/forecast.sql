-- What a run was expected to take, and what it took.

-- name: rates_of_run
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

-- name: find
-- A run's forecast, seconds of engine time, without what it took. One row, or none.
select
    low_s,
    expected_s,
    high_s,
    rates
from forecasts
where run_id = $run_id;

-- name: insert
-- Adds a run's forecast, unless an earlier start of it made one.
insert into forecasts by name
select
    $run_id as run_id,
    $low_s as low_s,
    $expected_s as expected_s,
    $high_s as high_s,
    $rates as rates
where not exists (select 1 from forecasts where run_id = $run_id);

-- name: note_actual
-- Sets what a run took beside its forecast: the time covered by its batches, each second once where they overlap.
update forecasts
set actual_s = (
    with spans as (
        select
            epoch(submitted_at) as start_s,
            epoch(finished_at) as end_s,
            max(epoch(finished_at)) over (
                order by submitted_at, finished_at rows between unbounded preceding and 1 preceding
            ) as earlier_end_s
        from batches
        where run_id = $run_id and num_prompts > 0
    )

    select sum(greatest(0, end_s - greatest(start_s, coalesce(earlier_end_s, 0)))) from spans
)
where run_id = $run_id;
