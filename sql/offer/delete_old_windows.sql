-- Deletes what the windows of the runs of old_runs took; their scores stay.
delete from windows where run_id in (select run_id from old_runs);
delete from outcomes where run_id in (select run_id from old_runs);
delete from engine_steps where run_id in (select run_id from old_runs);
delete from batches where run_id in (select run_id from old_runs);
