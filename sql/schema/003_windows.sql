-- One row a window that was asked.
create table windows (
    run_id varchar not null,
    query_id varchar not null,
    round integer not null,
    window_no integer not null,
    attempt integer not null,
    shard integer not null,
    batch_no integer not null,
    request_id varchar not null,
    docs usmallint[] not null,
    prompt_tokens integer not null,
    cached_tokens integer not null,
    output_tokens integer not null,
    truncated_passages integer not null,
    truncated_tokens integer not null,
    queue_s double,
    prefill_s double,
    ttft_s double,
    tpot_s double,
    e2el_s double,
    num_preemptions integer not null,
    finish_reason varchar not null,
    parse_status varchar not null,
    num_missing integer not null,
    num_duplicate integer not null,
    num_out_of_range integer not null,
    id_mass double,
    decode_mode varchar,
    num_listed integer
);

comment on table windows is 'One row a window: one prompt of some candidates of one query, and what came of it. Key: run_id, query_id, round, window_no, attempt.';
comment on column windows.run_id is 'Run';
comment on column windows.query_id is 'Query';
comment on column windows.round is 'Round of the query''s strategy, from 0: windows of one round do not depend on each other';
comment on column windows.window_no is 'Window within its round, from 0';
comment on column windows.attempt is '0, counted up where a window was asked again';
comment on column windows.shard is 'Shard of the batch that held it';
comment on column windows.batch_no is 'Batch that held it';
comment on column windows.request_id is 'Its name in messages: query, round, window and attempt';
comment on column windows.docs is 'Its candidates in prompt order, as places in the query''s first-stage order, from 0';
comment on column windows.prompt_tokens is 'Tokens of its prompt';
comment on column windows.cached_tokens is 'Prompt tokens found in the prefix cache';
comment on column windows.output_tokens is 'Tokens of its answer';
comment on column windows.truncated_passages is 'Passages cut to fit';
comment on column windows.truncated_tokens is 'Passage tokens left out';
comment on column windows.queue_s is 'Queued to scheduled, seconds; null where the engine did not say';
comment on column windows.prefill_s is 'Scheduled to first token, seconds';
comment on column windows.ttft_s is 'Arrival to first token, seconds';
comment on column windows.tpot_s is 'Per output token after the first, seconds; null for one token';
comment on column windows.e2el_s is 'Arrival to last token, seconds';
comment on column windows.num_preemptions is 'Times that the engine gave up its blocks and computed it again';
comment on column windows.finish_reason is 'stop or length, as vLLM says';
comment on column windows.parse_status is 'ok, missing, repetition, out_of_range, wrong_format, truncated, refusal, engine_error';
comment on column windows.num_missing is 'Candidates that the answer had to name and did not; they keep their order behind the others';
comment on column windows.num_duplicate is 'Identifiers named again';
comment on column windows.num_out_of_range is 'Identifiers that name no candidate';
comment on column windows.id_mass is 'Probability of all identifiers, or spellings of the verdict, at the first token (one-token modes); below 0.5 the prompt does not fit the model';
comment on column windows.decode_mode is 'How it was asked: first_token, permutation, reasoning, select, yes_no, query_likelihood';
comment on column windows.num_listed is 'Candidates that the answer named, or gave a value to';
