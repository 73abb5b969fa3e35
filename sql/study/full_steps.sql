-- A run's steps that filled the engine's token budget to at least 95 %: equal tokens, other sequences. seqs | elapsed_ms
select engine_steps.num_prefill_seqs + engine_steps.num_decode_seqs as num_seqs, engine_steps.elapsed_ms
from engine_steps
join runs using (run_id)
where
    engine_steps.run_id = $run_id
    and engine_steps.prefill_tokens + engine_steps.decode_tokens >= 0.95 * runs.max_num_batched_tokens
order by engine_steps.batch_no, engine_steps.step;
