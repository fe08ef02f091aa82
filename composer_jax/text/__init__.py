"""Text and tokens: the tokenizer and the chat format."""
