"""From a window to token ids: the model's tokenizer, our words, the model's chat template, and the cuts."""
