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
