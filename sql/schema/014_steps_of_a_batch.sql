-- An engine step belongs to the batch that it worked on: steps count within it, so that a resumed run never repeats a key.
alter table engine_steps add column batch_no integer;

comment on table engine_steps is 'The engine''s timeline, one row a step, where it was asked for ([packing] timeline). Key: run_id, shard, batch_no, step.';
comment on column engine_steps.batch_no is 'Batch that the step worked on';
comment on column engine_steps.step is 'Engine step within its batch, from 0';
comment on column engine_steps.elapsed_ms is 'Wall time of the whole step, milliseconds';
comment on column engine_steps.num_waiting_seqs is 'Sequences still waiting when the step had been filled';
comment on column engine_steps.blocks_used is 'KV-cache blocks in use when the step had been filled';
