-- What a run was expected to take, beside what it took.
create table forecasts (
    run_id varchar not null,
    low_s double not null,
    high_s double not null,
    actual_s double
);

comment on table forecasts is 'Predicted and actual time of a run. Key: run_id.';
comment on column forecasts.run_id is 'Run';
comment on column forecasts.low_s is 'Lower end of the predicted engine time, seconds';
comment on column forecasts.high_s is 'Upper end of the predicted engine time, seconds';
comment on column forecasts.actual_s is 'Engine time that it took, seconds; null while running';
