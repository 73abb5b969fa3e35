-- Fills a copy from the database attached as nights: its published runs, and all score rows of the runs that they point to.
insert into runs by name
select * from nights.runs where status = 'published';

insert into rankings by name
select * from nights.rankings where run_id in (select run_id from runs);

insert into scores by name
select * from nights.scores where run_id in (select scores_run_id from rankings);

insert into windows by name
select * from nights.windows where run_id in (select run_id from runs);

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
