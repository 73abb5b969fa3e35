-- The engine's timeline in at most $max_points points, each with the maxima of its steps. since_start_s: seconds
-- scheduled_seqs, waiting_seqs: sequences | blocks_used: KV-cache blocks | num_steps: of the whole timeline
with numbered as (
    select
        *,
        row_number() over (order by shard, batch_no, step) - 1 as place,
        count(*) over () as num_steps,
        min(started_at) over () as first_at
    from engine_steps
    where
        run_id = $run_id
        and shard = (select min(shard) from engine_steps where run_id = $run_id)
)

select
    min(date_diff('microsecond', first_at, started_at)) / 1e6 as since_start_s,
    max(num_prefill_seqs + num_decode_seqs) as scheduled_seqs,
    max(num_waiting_seqs) as waiting_seqs,
    max(blocks_used) as blocks_used,
    any_value(num_steps) as num_steps
from numbered
group by place * least($max_points, num_steps) // num_steps
order by since_start_s;
