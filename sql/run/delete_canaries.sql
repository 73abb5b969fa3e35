-- Makes room for canaries that are asked again.
delete from canaries where run_id = $run_id;
