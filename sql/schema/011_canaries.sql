-- Known pairs asked at the start of a run.
create table canaries (
    run_id varchar not null,
    pair varchar not null,
    margin double not null,
    passed boolean not null,
    recipe_digest ubigint
);

comment on table canaries is 'Pairs with a known better document, asked with every run. Key: run_id, pair.';
comment on column canaries.run_id is 'Run';
comment on column canaries.pair is 'Name of the pair';
comment on column canaries.margin is 'Model score of the relevant document less that of the other; above 0 is right';
comment on column canaries.passed is 'Whether the margin is above 0; canary_bands has the band of earlier nights';
comment on column canaries.recipe_digest is '64 bits over model, prompt, strategy and sizes, as rankings.recipe_digest';
