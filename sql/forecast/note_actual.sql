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
