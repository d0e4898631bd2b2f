"""Token vectors on their way through the blocks, in buffers that all blocks share.

R  rows: one for each token        D  width of a token's vector    F  inner width of the MLP
H  query heads                     K  key/value heads              d  width of a head
"""

import math

import torch

from helpers.inference.decoder.weights import BlockWeights, Weights


class Rows:
    """R token vectors, and all that a block does but attention.

    Use: `embed`; for each block `project`, then attention by the caller, then `finish`; `logits`.
    Call it without gradients: it writes in place.

    Attributes:
        queries: (R, K, H/K, d), a view of what `project` computed; pairs are neighbours.
        keys, values: (R, K, d) each, likewise.
    """

    def __init__(self, weights: Weights, rows: int):
        self.weights, config = weights, weights.config
        width, inner = config.width, config.inner
        heads, key_heads, d = config.heads, config.key_heads, config.head_width
        new = weights.embedding.new_empty
        # One more column, √(D ε): the root of all squares is then √D times the norm's divisor.
        self._longer = new(rows, width + 1)
        self._longer[:, width] = math.sqrt(width * config.norm_eps)
        self.hidden = self._longer[:, :width]
        self._root, self._normed = new(rows, 1), new(rows, width)
        self._qkv = new(rows, (heads + 2 * key_heads) * d)
        rotated = self._qkv[:, : (heads + key_heads) * d].unflatten(1, (-1, d // 2, 2))
        self._pairs = torch.view_as_complex(rotated)  # (R, H + K, d/2)
        self.queries = self._qkv[:, : heads * d].unflatten(1, (key_heads, -1, d))
        self.keys, self.values = self._qkv[:, heads * d :].unflatten(1, (2, key_heads, d)).unbind(1)
        self._gate_up = new(rows, 2 * inner)
        self._gate, self._up = self._gate_up[:, :inner], self._gate_up[:, inner:]

    def embed(self, tokens: torch.Tensor):
        """Begin with the vectors of tokens (R,)."""
        self.hidden.copy_(self.weights.embedding[tokens])

    def norm(self) -> torch.Tensor:
        """Divide each row by the root of its squares' sum, plus D ε. The matrices hold the rest."""
        torch.linalg.vector_norm(self._longer, dim=1, keepdim=True, out=self._root)
        return torch.div(self.hidden, self._root, out=self._normed)

    def project(self, block: BlockWeights, angles: torch.Tensor):
        """Compute queries, keys and values, and rotate queries and keys by their place's angles.

        Args:
            angles: complex, (R, 1, d/2), or (1, d/2) if all rows are at the same place.
        """
        torch.mm(self.norm(), block.qkv, out=self._qkv)
        self._pairs.mul_(angles)

    def finish(self, block: BlockWeights, attended: torch.Tensor):
        """Add attention's output, from `attended` (R, H d), then the MLP's."""
        self.hidden.addmm_(attended, block.out)
        torch.mm(self.norm(), block.gate_up, out=self._gate_up)
        torch.nn.functional.silu(self._gate, inplace=True).mul_(self._up)
        self.hidden.addmm_(self._gate, block.down)

    def logits(self) -> torch.Tensor:
        """Compute the logits, (R, V)."""
        return self.norm() @ self.weights.head
