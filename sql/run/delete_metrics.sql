-- Makes room for a repeated evaluation.
delete from metrics where run_id = $run_id;
