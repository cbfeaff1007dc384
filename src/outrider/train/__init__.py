"""Trains drafters.  ``run`` gathers the data, trains and writes; a room for each stage, a recipe for each method.

* ``data``: prompts, decontaminated, and the target's answers to them.
* ``features``: the target's hidden rows of those texts, on disk and as batches.
* ``recipes``, ``objectives``: a method's head and loss; the divergences that losses are made of.
* ``loop``: steps, workers, the state that a killed training resumes from.
* ``evaluation``, ``report``: held-out acceptance and payoff; what is printed, drawn and kept.
"""
