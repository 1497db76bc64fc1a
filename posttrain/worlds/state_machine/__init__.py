"""A planner who keeps the state of a process while sub-agents do its work."""
