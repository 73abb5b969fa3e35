-- Published runs for others: exports, and the copy beside the database.

-- name: list_scores
-- A run's rows over a span of queries, for export: at most $top_k a query, all where it is null. The columns of scores but run_id
select * exclude (run_id)
from all_scores
where
    run_id = $run_id
    and query_id between $first_query_id and $last_query_id
    and ($top_k::integer is null or rank <= $top_k::integer)
order by query_id, rank;

-- name: attach_nights
-- Reads another database as `nights`, beside the one that is open.
attach $path as nights (read_only);

-- name: copy_published
-- Fills a copy from the database attached as nights: its published runs, and all score rows of the runs that they point to.
insert into runs by name
select * exclude (elapsed_s) from nights.runs where status = 'published';

insert into rankings by name
select * from nights.rankings where run_id in (select run_id from runs);

insert into scores by name
select * from nights.scores where run_id in (select scores_run_id from rankings);

insert into windows by name
select * from nights.windows where run_id in (select run_id from runs);

insert into outcomes by name
select * from nights.outcomes where run_id in (select run_id from runs);

insert into batches by name
select * from nights.batches where run_id in (select run_id from runs);

insert into quarantine by name
select * from nights.quarantine where run_id in (select run_id from runs);

insert into check_results by name
select * from nights.check_results where run_id in (select run_id from runs);

insert into forecasts by name
select * from nights.forecasts where run_id in (select run_id from runs);

insert into canaries by name
select * from nights.canaries where run_id in (select run_id from runs);

insert into metrics by name
select * from nights.metrics where run_id in (select run_id from runs);

-- name: detach_nights
-- Lets go of the other database, for others to write.
detach nights;
