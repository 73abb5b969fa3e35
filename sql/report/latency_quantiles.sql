-- The distribution of each latency over a run's requests: 201 quantiles from 0 to 1, so that any night fits. seconds
select
    quantile_cont(ttft_s, [place / 200.0 for place in range(201)]) as ttft_s,
    quantile_cont(queue_s, [place / 200.0 for place in range(201)]) as queue_s,
    quantile_cont(e2el_s, [place / 200.0 for place in range(201)]) as e2el_s,
    quantile_cont(tpot_s, [place / 200.0 for place in range(201)]) as tpot_s
from windows
where run_id = $run_id;
