-- Makes room for a repeated check.
delete from check_results where run_id = $run_id;
