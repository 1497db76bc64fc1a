"""Post-train a tool-using LLM agent, and know whether it got better."""
