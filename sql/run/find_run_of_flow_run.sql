-- The run that a flow run took up. run_id
select run_id from runs where flow_run_id = $flow_run_id order by started_at desc limit 1;
