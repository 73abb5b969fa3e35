-- What an earlier run's queries were ranked on, for shards that match theirs with it. The columns of rankings
select * from rankings where run_id = $earlier_run_id;
