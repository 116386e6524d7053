"""Stands in for SGLang's kernels on a CPU, which are not on PyPI: the operators that a Llama-like model and speculation
call, in plain torch. Slow, and greedy in every verification of a tree."""

import ctypes

import torch

# Where keys and values of requests lie: req_to_token [requests, positions] -> slot.


def assign_req_to_token_pool_cpu(rows, req_to_token, starts, ends, slots, width):
    used = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist()):
        req_to_token[row, start:end] = slots[used : used + end - start].to(req_to_token.dtype)
        used += end - start


def assign_extend_cache_locs_cpu(rows, req_to_token, starts, ends, slots, width):
    used = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist()):
        slots[used : used + end - start] = req_to_token[row, start:end].to(slots.dtype)
        used += end - start


def assign_draft_cache_locs_contiguous_cpu(rows, req_to_token, lengths, slots, width, topk, steps):
    count = topk * steps
    for place, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist())):
        slots[place * count : (place + 1) * count] = req_to_token[row, length : length + count].to(slots.dtype)


def build_draft_decode_metadata_cpu(req_to_token, rows, lengths, topk, steps, width):
    table = torch.zeros(len(rows) * topk, width, dtype=req_to_token.dtype)
    for place, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist())):
        for branch in range(topk):
            line = table[place * topk + branch]
            line[:length] = req_to_token[row, :length]
            line[length : length + steps] = req_to_token[row, length + branch * steps : length + (branch + 1) * steps]
    return table


def copy_all_layer_kv_cache_cpu(pointers, strides, targets, sources):
    for pointer, stride in zip(pointers.tolist(), strides.tolist()):
        held = [ctypes.string_at(pointer + source * stride, stride) for source in sources.tolist()]
        for target, row in zip(targets.tolist(), held):
            ctypes.memmove(pointer + target * stride, row, stride)


# What was accepted.


def fill_bonus_tokens_cpu(tokens, lengths, bonus, stride):
    last = torch.arange(len(lengths)) * stride + lengths.long() - 1
    bonus[: len(lengths)] = tokens.flatten()[last].to(bonus.dtype)


def fill_accept_out_cache_loc_cpu(accepted, slots, accepted_slots):
    kept = accepted.flatten()
    kept = kept[kept >= 0].long()
    accepted_slots[: len(kept)] = slots[kept].to(accepted_slots.dtype)


def rotate_input_ids_cpu(tokens, starts, lengths, following, selected=None):
    """Each request's tokens one to the left; what follows them comes last."""
    for place, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist())):
        if length > 0:
            tokens[start : start + length - 1] = tokens[start + 1 : start + length].clone()
            last = start + length - 1 if selected is None else int(selected[place])
            tokens[last] = following.flatten()[place].to(tokens.dtype)


def verify_tree_greedy_cpu(
    *,
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,  # SGLang spells it so
    retrive_next_token,
    retrive_next_sibling,
    target_predict,
):
    choice = target_predict.flatten().tolist()
    trees = (candidates, retrive_index, retrive_next_token, retrive_next_sibling)
    for request, (tokens, place, child, sibling) in enumerate(zip(*(tree.tolist() for tree in trees))):
        last, node, count = place[0], 0, 0
        accept_index[request, 0] = last
        while count + 1 < accept_index.shape[1]:
            node = child[node]
            while node != -1 and tokens[node] != choice[last]:
                node = sibling[node]
            if node == -1:
                break
            predicts[last] = choice[last]
            count, last = count + 1, place[node]
            accept_index[request, count] = last
        accept_token_num[request], predicts[last] = count, choice[last]


# Trees of drafts: node 0 is the last committed token, parents come before their children.


def build_tree_kernel_efficient_cpu(
    parents, selected, lengths, mask, positions, indices, next_tokens, next_siblings, topk, depth, nodes, mode
):
    if int(mode) not in (0, 1):
        raise NotImplementedError(f"tree mask mode {mode}")
    used, grid = 0, positions.view(len(lengths), nodes)
    for request, length in enumerate(lengths.tolist()):
        chosen, table = selected[request].tolist(), parents[request].tolist()
        place = {}
        for number, token in enumerate(chosen[: nodes - 1]):
            place.setdefault(token, number + 1)
        parent = [-1] * nodes
        for node in range(1, nodes):
            branch = chosen[node - 1] // topk
            parent[node] = 0 if branch == 0 else place.get(table[branch], -1)
        indices[request] = torch.arange(request * nodes, (request + 1) * nodes)
        for node in range(nodes - 1, 0, -1):
            if (above := parent[node]) >= 0:
                if (sibling := int(next_tokens[request, above])) != -1:
                    next_siblings[request, node] = sibling
                next_tokens[request, above] = node
        seen = torch.zeros(nodes, nodes, dtype=mask.dtype)
        for node in range(nodes):
            seen[node, 0] = 1
            steps, above = 0, node
            while above > 0:
                seen[node, above] = 1
                steps, above = steps + 1, parent[above]
            grid[request, node] = length + steps
        if int(mode) == 0:  # the mask covers the text before the tree, too
            width = length + nodes
            mask[used : used + nodes * width].view(nodes, width)[:, length:] = seen
            used += nodes * width
        else:
            mask.view(-1)[request * nodes * nodes : (request + 1) * nodes * nodes] = seen.flatten()


# Attention. q [rows, heads, dim]; keys and values [slots, kv heads, dim].


def _attend(q, keys, values, mask, scale, cap):
    groups = q.shape[1] // keys.shape[1]
    keys, values = (each.repeat_interleave(groups, 1).float() for each in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * scale
    if cap and cap > 0:
        scores = cap * torch.tanh(scores / cap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), values).to(q.dtype)


def _extend_attention(
    q, k, v, out, key_buffer, value_buffer, key_scale, value_scale, req_to_token, rows, lengths, extends, starts,
    longest, scale, cap, is_cross, window, encoder_lengths, sinks, tree_mask, causal=True,
):  # fmt: skip
    if is_cross or sinks is not None:
        raise NotImplementedError("cross-attention and sinks")
    tree, used = None if tree_mask is None else tree_mask.view(-1), 0
    for row, length, new, start in zip(rows.tolist(), lengths.tolist(), extends.tolist(), starts.tolist()):
        if new == 0:
            continue
        slots, mask = req_to_token[row, :length].long(), None
        if tree is not None:
            mask = torch.ones(new, length, dtype=torch.bool)
            mask[:, length - new :] = tree[used : used + new * new].view(new, new).bool()
            used += new * new
        elif causal:
            mask = torch.arange(length)[None, :] <= torch.arange(length - new, length)[:, None]
        queries = q[start : start + new]
        out[start : start + new] = _attend(queries, key_buffer[slots], value_buffer[slots], mask, scale, cap)


def _decode_attention(
    q, key_buffer, value_buffer, key_scale, value_scale, out, k, v, slots, logits, req_to_token, rows, lengths, scale,
    cap, is_cross, window, encoder_lengths, sinks,
):  # fmt: skip
    if k is not None and v is not None:
        for buffer, new in ((key_buffer, k), (value_buffer, v)):
            buffer[slots.long()] = new.view(-1, *buffer.shape[1:]).to(buffer.dtype)
    for place, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist())):
        held = req_to_token[row, :length].long()
        out[place : place + 1] = _attend(q[place : place + 1], key_buffer[held], value_buffer[held], None, scale, cap)


def _no_hash(*args):
    raise NotImplementedError("seeded sampling")


class _Operator:
    """What ``torch.ops.sgl_kernel.<name>`` is: called, or its ``default``."""

    def __init__(self, function):
        self.default = function

    def __call__(self, *args):
        return self.default(*args)


_library = torch.library.Library("sgl_kernel", "FRAGMENT")  # kept: the namespace goes with it
torch.ops.sgl_kernel.extend_attention_cpu = _Operator(_extend_attention)
torch.ops.sgl_kernel.decode_attention_cpu = _Operator(_decode_attention)
torch.ops.sgl_kernel.murmur_hash32_cpu = _Operator(_no_hash)
