-- One run. The columns of runs
select * from runs where run_id = $run_id;
