-- A forecast says what it was made of.
alter table forecasts add column expected_s double;
alter table forecasts add column rates varchar;

comment on column forecasts.expected_s is 'Engine time that was expected, seconds';
comment on column forecasts.rates is 'Where the rates came from that it was made with';
comment on column forecasts.low_s is 'Lower end of the range of engine time, seconds';
comment on column forecasts.high_s is 'Upper end of the range of engine time, seconds';
comment on column forecasts.actual_s is 'Time in which a batch was in the engine, of all starts together, seconds; null until the run is ranked';
