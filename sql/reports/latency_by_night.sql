-- Latency of each run's requests by night. *_s: seconds
select
    night,
    name,
    run_id,
    successful_requests,
    median_ttft_s,
    p99_ttft_s,
    median_e2el_s,
    p99_e2el_s,
    median_queue_s,
    total_tokens_per_s
from serving_benchmark
order by night desc, name, run_id;
