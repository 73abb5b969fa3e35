-- The rows of `runs`: how a run is found, begins, ends, and is published.

-- name: find_run
-- One run. The columns of runs
select * from runs where run_id = $run_id;

-- name: find_repeats
-- A run and its repetitions. The columns of runs
select *
from runs
where run_id = $base_run_id or starts_with(run_id, $base_run_id || '-r');

-- name: find_night
-- The run of a series' night that came furthest: the published one, else the newest. The columns of runs
select *
from runs
where name = $name and night = $night::date and not is_limited
order by status = 'published' desc, started_at desc
limit 1;

-- name: find_run_of_flow_run
-- The run that a flow run took up. The columns of runs
select * from runs where flow_run_id = $flow_run_id order by started_at desc limit 1;

-- name: find_published
-- The published run of a series of the greatest night that is not after $until; of several the last published.
-- The columns of runs
select *
from runs
where name = $name and night <= $until::date and status = 'published'
order by night desc, publication_no desc
limit 1;

-- name: list_finished_runs
-- The finished runs of a series, the last to start first. The columns of runs
select *
from runs
where name = $name and status in ('complete', 'published')
order by started_at desc, run_id desc;

-- name: find_newest_run
-- The finished run that started last, of a series or of any; trials are passed over. run_id
select run_id
from runs
where status in ('complete', 'published') and is_limited is not true and ($name is null or name = $name)
order by started_at desc, run_id desc
limit 1;

-- name: list_runs
-- The newest runs of a series or of any. is_trial: not all queries | seconds: from the first start to the last end |
-- mean_id_mass: of the decode mode where it is lowest, see run_summary
with newest as (
    select *
    from runs
    where $name is null or name = $name
    order by started_at desc, run_id desc
    limit $limit
),

id_masses as (
    select run_id, min(mean_id_mass) as mean_id_mass
    from (
        select run_id, avg(id_mass) as mean_id_mass
        from windows
        where run_id in (select run_id from newest)
        group by run_id, decode_mode
    )
    group by run_id
)

select
    run_id,
    status,
    is_limited as is_trial,
    num_queries,
    date_diff('millisecond', started_at, finished_at) / 1000.0 as seconds,
    mean_id_mass,
    error
from newest
left join id_masses using (run_id)
order by newest.started_at desc, run_id desc;

-- name: supersede_runs
-- A run begins: unfinished runs of its series and night give way to it. Others that are still marked running were killed,
-- since nobody else holds the run lock.
update runs
set
    status = if(name = $name and night = $night::date, 'superseded', 'failed'),
    finished_at = coalesce(finished_at, now()),
    error = if(status = 'running', 'killed: its process ended without a word', error)
where
    run_id <> $run_id
    and (status = 'running' or (name = $name and night = $night::date and status in ('failed', 'cancelled')));

-- name: replace_run
-- Begins a run, for the first time or again: the row of incoming.
insert or replace into runs by name
select * from incoming;

-- name: note_input
-- What staging found.
update runs
set num_queries = $num_queries, num_candidates = $num_candidates, num_reused_queries = 0, input_notes = $notes::json
where run_id = $run_id;

-- name: note_engine
-- What the engine reported at its start.
update runs
set
    device = $device,
    dtype = $dtype,
    enable_prefix_caching = $enable_prefix_caching,
    num_gpu_blocks = $num_gpu_blocks,
    block_size = $block_size,
    max_num_seqs = $max_num_seqs,
    max_num_batched_tokens = $max_num_batched_tokens
where run_id = $run_id;

-- name: count_rankings
-- How far a run is. num_rankings: queries with a row
select count(*) as num_rankings from rankings where run_id = $run_id;

-- name: complete_run
-- Ends the ranking of a run, and counts the queries whose scores are an earlier run's.
update runs
set
    status = 'complete',
    finished_at = now(),
    error = null,
    num_reused_queries = (select count(*) from rankings where run_id = $run_id and status = 'reused')
where run_id = $run_id and status <> 'published';

-- name: finish_run
-- Ends a run that did not become complete: failed or cancelled. What goes wrong after it was published does not undo that.
update runs
set status = $status, finished_at = now(), error = $error
where run_id = $run_id and status <> 'published';

-- name: fail_crashed_run
-- A run whose flow run crashed, and which no other flow run took up since.
update runs
set status = 'failed', finished_at = now(), error = 'killed: its process ended without a word'
where status = 'running' and flow_run_id = $flow_run_id;

-- name: note_checks
-- Notes which checks failed.
update runs
set failed_checks = $failed_checks, is_degraded = len($failed_checks) > 0
where run_id = $run_id;

-- name: publish_run
-- Makes a complete run the one of its night.
update runs
set
    status = 'published',
    published_at = now(),
    publication_no = (select coalesce(max(publication_no), 0) + 1 from runs),
    offered_at = null
where run_id = $run_id and status = 'complete';

-- name: drop_logprobs
-- A published run is not resumed: its orders stay, and what single passages got, at a quarter of the bytes.
update outcomes set outcome_logprobs = null where len(outcome_logprobs) > 1 and run_id = $run_id;

-- name: delete_outcomes
-- Of a series' published runs, all outcomes but those that its newest $keep_nights published nights show, also where they
-- reuse them.
delete from outcomes
where
    run_id in (select run_id from runs where name = $name and status = 'published')
    and (run_id, query_id) not in (
        select rankings.scores_run_id, rankings.query_id
        from rankings
        where
            rankings.run_id in (
                select published_nights.run_id
                from published_nights
                where name = $name
                order by night desc
                limit $keep_nights
            )
    );

-- name: unpublish_run
-- Takes a published run back: latest_scores shows the one before it.
update runs
set status = 'complete', published_at = null, publication_no = null
where run_id = $run_id and status = 'published';

-- name: note_offered
-- All that follows the publication of a run is done.
update runs set offered_at = now() where run_id = $run_id and status = 'published';
