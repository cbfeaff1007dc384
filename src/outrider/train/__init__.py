"""Trains drafters.  ``run`` gathers the data, trains, and writes the drafter.

* ``data``: decontaminated prompts and the target's answers.
* ``features``: the target's hidden rows of those texts, on disk and as batches.
* ``recipes``, ``objectives``: each method's head and loss; the divergences in losses.
* ``loop``: steps, workers, and the state to resume from.
* ``evaluation``, ``report``: held-out acceptance and speedup; what is printed, drawn and saved.
"""
