-- What a run was expected to take, beside what it took.
create table forecasts (
    run_id varchar not null,
    low_s double not null,
    high_s double not null,
    actual_s double,
    expected_s double,
    rates varchar
);

comment on table forecasts is 'Predicted and actual time of a run. Key: run_id.';
comment on column forecasts.run_id is 'Run';
comment on column forecasts.low_s is 'Lower end of the range of engine time, seconds';
comment on column forecasts.high_s is 'Upper end of the range of engine time, seconds';
comment on column forecasts.actual_s is 'Time in which a batch was in the engine, of all starts together, seconds; null until the run is ranked';
comment on column forecasts.expected_s is 'Engine time that was expected, seconds';
comment on column forecasts.rates is 'Source of the rates that the forecast used';
