"""Makes trained drafters: data, capture of features, objectives, recipes and the loop."""
