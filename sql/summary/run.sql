-- One run's row of run_summary.
select * from run_summary where run_id = $run_id;
