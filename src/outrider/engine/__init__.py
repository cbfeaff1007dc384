"""The engine: one round for every request, and what a round needs to know of one."""
