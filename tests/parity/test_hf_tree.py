"""Tree rows on the paged cache equal the same model run plainly on each path."""

import torch
from tiny import VOCABULARY, tiny_model, tiny_module

from outrider.kv.pool import PagedCache
from outrider.kv.state import Kept
from outrider.tree import SequenceRows, TokenTree, TreeBatch, TreeBuilder


def plain_logits(tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return tiny_module(0, attention="eager")(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def random_tree(anchor: int, nodes: int, generator: torch.Generator) -> TokenTree:
    builder = TreeBuilder(anchor)
    while len(builder) < nodes:
        parent = int(torch.randint(len(builder), (1,), generator=generator))
        builder.add(parent, int(torch.randint(VOCABULARY, (1,), generator=generator)))
    return builder.build()


def test_ragged_trees_chunks_and_commits_match_plain_paths() -> None:
    generator = torch.Generator().manual_seed(1)
    model, cache = tiny_model(0), PagedCache(pages=64, page_size=4)
    texts = {
        key: torch.randint(VOCABULARY, (n,), generator=generator).tolist()
        for key, n in {"a": 5, "b": 13, "c": 1}.items()
    }
    computed = dict.fromkeys(texts, 0)
    worst = 0.0
    for step in range(6):
        sequences = []
        for key, text in texts.items():
            pending = text[computed[key] :]
            if key == "b" and step == 0:  # a chunk that does not reach the anchor
                sequences.append(SequenceRows(key, 0, tuple(pending[:7]), None))
                continue
            tree = random_tree(text[-1], 1 + (3 * step + ord(key)) % 8, generator)
            sequences.append(SequenceRows(key, computed[key], tuple(pending[:-1]), tree))
        batch = TreeBatch.pack(sequences)
        for sequence in sequences:
            assert cache.extend(sequence.key, sequence.context + sequence.rows)
        output = model.forward(batch, cache)
        for index, sequence in enumerate(sequences):
            key, tree = sequence.key, sequence.tree
            if tree is None:
                computed[key] += len(sequence.forced)
                continue
            for logits, path in zip(batch.tree_logits(output.logits, index), tree.paths, strict=True):
                worst = max(worst, float((plain_logits(texts[key] + list(path))[-1] - logits).abs().max()))
            leaf = len(tree) - 1
            path_nodes = []
            while leaf:
                path_nodes.insert(0, leaf)
                leaf = tree.parents[leaf]
            forced = len(sequence.forced)
            kept = [*range(forced + 1), *(forced + node for node in path_nodes)]
            cache.commit([Kept(key, sequence.context, kept)])
            computed[key] += len(kept)
            texts[key] += [tree.tokens[node] for node in path_nodes] + [
                int(torch.randint(VOCABULARY, (1,), generator=generator))
            ]
        cache.check()
    assert worst < 2e-5
