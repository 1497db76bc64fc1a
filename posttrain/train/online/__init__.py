"""Learning online: which tasks are played, what an episode's tokens are credited with, and the loss
that they are learnt by; each a choice of params.yaml."""
