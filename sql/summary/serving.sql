-- One run's row of serving_benchmark.
select * from serving_benchmark where run_id = $run_id;
