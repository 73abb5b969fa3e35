-- What a resumed run replays, and what is told of the newest published nights.
create table outcomes (
    run_id varchar not null,
    query_id varchar not null,
    round integer not null,
    window_no integer not null,
    attempt integer not null,
    outcome_order usmallint[] not null,
    outcome_logprobs float[],
    answer varchar
);

comment on table outcomes is 'How each window was ordered: what a resumed run replays. Key as in windows. Of published nights the newest ones'' are kept, see [store.keep_outcomes].';
comment on column outcomes.run_id is 'Run';
comment on column outcomes.query_id is 'Query';
comment on column outcomes.round is 'Round, see windows';
comment on column outcomes.window_no is 'Window within its round';
comment on column outcomes.attempt is 'Attempt, see windows';
comment on column outcomes.outcome_order is 'The window''s candidates, best first, as places in the query''s first-stage order; those not named at the end';
comment on column outcomes.outcome_logprobs is 'Log-probability of each candidate''s identifier, or of the one candidate''s yes or query, parallel to outcome_order; of several candidates null once the run is published, unless [store.keep_outcomes] logprobs';
comment on column outcomes.answer is 'The model''s text, up to 2,000 characters, where parse_status is not ok; else null';
