"""One policy plays one task: engines (token ids in, token ids out), policies (messages in, a
message out), episodes."""
