-- Adds a run's forecast, unless an earlier start of it made one.
insert into forecasts by name
select
    $run_id as run_id,
    $low_s as low_s,
    $expected_s as expected_s,
    $high_s as high_s,
    $rates as rates
where not exists (select 1 from forecasts where run_id = $run_id);
