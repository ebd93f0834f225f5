"""The router that all families share: scores to the chosen experts and their weights, in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero.models.config import MoeConfig

if TYPE_CHECKING:
    import torch


def _limit_groups(choice: torch.Tensor, moe: MoeConfig) -> torch.Tensor:
    """Keep the scores of the `topk_group` best groups; a group's score is its best, or the sum of its best two."""
    import torch

    grouped = choice.view(choice.shape[0], moe.n_group, -1)
    if moe.group_score == "max":
        score = grouped.amax(dim=-1)
    else:
        score = grouped.topk(2, dim=-1).values.sum(dim=-1)
    best = score.topk(moe.topk_group, dim=-1).indices
    closed = torch.ones_like(score, dtype=torch.bool).scatter_(1, best, False)
    # -inf, not 0: with negative correction biases an open group's scores may lie below 0.
    return grouped.masked_fill(closed[..., None], float("-inf")).flatten(1)


def route(logits: torch.Tensor, moe: MoeConfig, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts for router `logits` float32 [T, E]; returns ids int32 [T, k] and weights float32 [T, k].

    The correction `bias` float32 [E] (DeepSeek-V3, arXiv 2412.19437 section 2.1.2) decides the choice only; weights
    are the unbiased scores gathered by index. `scaling` is applied here and nowhere else.
    """
    import torch

    logits = logits.float()
    if moe.scoring == "softmax" and moe.norm_topk and moe.n_group == 1 and bias is None:
        # softmax, top-k, renormalise: the same as a softmax over the k best logits
        best, ids = logits.topk(moe.top_k, dim=-1)
        weights = torch.softmax(best, dim=-1)
    else:
        ids, weights = _by_scores(logits, moe, bias)
    if moe.scaling != 1.0:
        weights = weights * moe.scaling
    return ids.to(torch.int32), weights


def _by_scores(logits: torch.Tensor, moe: MoeConfig, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    scores = _scores(logits, moe)
    if bias is not None:
        choice = scores + bias
    else:  # scores grow with the logits, but large ones are all 1 in float32
        choice = scores if moe.n_group > 1 else logits
    if moe.n_group > 1:
        choice = _limit_groups(choice, moe)
    ids = choice.topk(moe.top_k, dim=-1).indices
    return ids, _weights(scores, ids, moe)


def _scores(logits: torch.Tensor, moe: MoeConfig) -> torch.Tensor:
    import torch
    import torch.nn.functional as F

    if moe.scoring == "sqrtsoftplus":
        return F.softplus(logits).sqrt()
    return logits.sigmoid() if moe.scoring == "sigmoid" else torch.softmax(logits, dim=-1)


def _weights(scores: torch.Tensor, ids: torch.Tensor, moe: MoeConfig) -> torch.Tensor:
    weights = scores.gather(1, ids)
    return weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) if moe.norm_topk else weights


def weigh(logits: torch.Tensor, ids: torch.Tensor, moe: MoeConfig) -> torch.Tensor:
    """Weights float32 [T, k] of the experts `ids` [T, k], which were chosen without router `logits` [T, E]."""
    return _weights(_scores(logits.float(), moe), ids.long(), moe) * moe.scaling
