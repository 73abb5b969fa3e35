-- Runs of a series older than its newest $keep_nights published nights, but for those that a younger run points to. run_id
with recursive published_nights as (
    select night, row_number() over (order by night desc) as place
    from (select distinct night from runs where name = $name and status = 'published')
),

old_runs as (
    select run_id
    from runs
    where
        name = $name
        and run_id <> $run_id
        and status <> 'running'
        and night < (select night from published_nights where place = $keep_nights)
),

kept as (
    select run_id from runs where run_id not in (select run_id from old_runs)

    union

    select rankings.scores_run_id
    from kept
    join rankings on rankings.run_id = kept.run_id
)

select run_id
from old_runs
where run_id not in (select run_id from kept)
order by run_id;
