-- A run's forecast, seconds of engine time, without what it took. One row, or none.
select
    low_s,
    expected_s,
    high_s,
    rates
from forecasts
where run_id = $run_id;
