"""The n-gram drafter's tree, from its mask."""

import torch


def reconstruct_indices_from_tree_mask(mask, lengths, positions, indices, next_tokens, next_siblings, requests, nodes):
    count = requests * nodes
    seen = mask.reshape(-1)[: count * nodes].view(requests, nodes, nodes).bool()
    above = seen & torch.tril(torch.ones(nodes, nodes, dtype=torch.bool), -1)  # ancestors of each node
    depths = (above.sum(-1) + lengths.view(requests, 1)).flatten()
    positions.view(-1)[:count] = depths.to(positions.dtype)
    indices.view(-1)[:count] = torch.arange(count, dtype=indices.dtype)
    children, siblings = (each.view(-1)[:count].view(requests, nodes) for each in (next_tokens, next_siblings))
    children.fill_(-1)
    siblings.fill_(-1)
    for request, table in enumerate(above.tolist()):
        parent = [max((other for other in range(node) if table[node][other]), default=-1) for node in range(nodes)]
        for node in range(nodes):
            later = range(node + 1, nodes)
            children[request, node] = next((other for other in later if parent[other] == node), -1)
            if parent[node] >= 0:
                siblings[request, node] = next((other for other in later if parent[other] == parent[node]), -1)
