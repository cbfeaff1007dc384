"""Shared test settings."""

import torch

torch.set_num_threads(1)  # tiny models: a second thread costs more than it gives
