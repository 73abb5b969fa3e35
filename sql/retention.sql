-- The end of old nights.

-- name: find_old_runs
-- Runs of a series older than its newest $keep_nights published nights, but for those that a younger run points to. run_id
with recursive nights as (
    select night, row_number() over (order by night desc) as place
    from published_nights
    where name = $name
),

old_runs as (
    select run_id
    from runs
    where
        name = $name
        and run_id <> $run_id
        and status <> 'running'
        and night < (select night from nights where place = $keep_nights)
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

-- name: delete_old_runs
-- Deletes the runs of old_runs from every table.
delete from scores where run_id in (select run_id from old_runs);
delete from rankings where run_id in (select run_id from old_runs);
delete from windows where run_id in (select run_id from old_runs);
delete from outcomes where run_id in (select run_id from old_runs);
delete from engine_steps where run_id in (select run_id from old_runs);
delete from batches where run_id in (select run_id from old_runs);
delete from quarantine where run_id in (select run_id from old_runs);
delete from check_results where run_id in (select run_id from old_runs);
delete from forecasts where run_id in (select run_id from old_runs);
delete from canaries where run_id in (select run_id from old_runs);
delete from metrics where run_id in (select run_id from old_runs);
delete from runs where run_id in (select run_id from old_runs);

-- name: find_old_windows
-- Finished runs older than the newest $keep_nights published nights that still have batches. A degraded one is left alone:
-- its checks run again when its command does, and look at windows. run_id
with nights as (
    select night, row_number() over (order by night desc) as place
    from published_nights
    where name = $name
)

select run_id
from runs
where
    name = $name
    and run_id <> $run_id
    and status in ('complete', 'published')
    and not is_degraded
    and night < (select night from nights where place = $keep_nights)
    and run_id in (select run_id from batches)
order by run_id;

-- name: delete_old_windows
-- Deletes what the windows of the runs of old_runs took; their scores stay.
delete from windows where run_id in (select run_id from old_runs);
delete from outcomes where run_id in (select run_id from old_runs);
delete from engine_steps where run_id in (select run_id from old_runs);
delete from batches where run_id in (select run_id from old_runs);
