"""The controller: how much each request may draft, by which drafter, and which drafts are worth their row."""
