"""For `tests.benchmarks.peer`: a logits processor by which an answer of at most 90 tokens has 90, as RankLLM's has.

vLLM's own `min_tokens` for requests that do not ask for it: packrank never does, since an order may be shorter.
"""

from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor

FORCED_TOKENS = 90


class NoEnd(MinTokensLogitsProcessor):
    """No token that ends an answer, where the request is for at most 90 tokens."""

    @staticmethod
    def add_request(params, prompt_token_ids, output_token_ids):
        if params.max_tokens != FORCED_TOKENS or len(output_token_ids) >= FORCED_TOKENS:
            return None
        return FORCED_TOKENS, output_token_ids, params.all_stop_token_ids, False
