"""The one name of vllm.inputs that the engine child takes."""


def tokens_input(prompt_token_ids):
    return {"type": "token", "prompt_token_ids": prompt_token_ids}
