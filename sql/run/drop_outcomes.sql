-- A published run is not resumed.
delete from outcomes where run_id = $run_id;
