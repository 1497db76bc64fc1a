"""Agent loops of programs that keep their own conversation: LangGraph graphs, OpenAI clients.

Only a user's module imports them, so that no stage waits for a framework.
"""
