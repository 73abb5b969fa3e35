-- What the engine said it computes in: the same prompt may be answered otherwise under another dtype, or from a warm cache.
alter table runs add column dtype varchar;
alter table runs add column enable_prefix_caching boolean;

comment on column runs.dtype is 'Number type of the weights, as vLLM resolved it; null until the engine was started';
comment on column runs.enable_prefix_caching is 'Whether prompts share the cache of equal beginnings; null until the engine was started';
