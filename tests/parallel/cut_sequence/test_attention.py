"""Attention over a cut sequence: parts of any length and order, bytes, messages and refusals."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.transport import GroupTransport
from helpers.data.batch import Batch, random_batch
from helpers.models.attention import Core
from helpers.models.config import CHOICES, GPTConfig
from helpers.models.settings import Mamba2Settings
from helpers.parallel.cut_sequence.collective import gathered_attention, ulysses
from helpers.parallel.cut_sequence.model import Cut, CutCore, context_parallel, cut_sequence
from helpers.parallel.cut_sequence.ring import ring_attention, travelling
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.trainer import Recipe
from helpers.plans.messages import wire
from helpers.plans.sequence_order import contiguous, striped, zigzag
from helpers.plans.sequence_traffic import attention_messages, ring_attention_bytes
from helpers.state.placing import Seat

WAYS = {"ring": ring_attention, "ulysses": ulysses, "gathered": gathered_attention}


def ragged(tokens, ranks):
    """Parts that no order makes: the first rank has the last tokens, others few or none."""
    return [(range(3, 11),), (range(1),), (range(1, 3),), ()][:ranks]


def random(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def inputs(sequences, tokens, heads, kept):
    """q, k, v, and weights of the result: values are narrower than keys."""
    shapes = [(heads, 4), (kept, 4), (kept, 3), (heads, 3)]
    return [random(sequences, h, tokens, w, seed=n) for n, (h, w) in enumerate(shapes)]


def trained(attention, q, k, v, weights):
    q, k, v = (one.clone().requires_grad_() for one in (q, k, v))
    y = attention(q, k, v)
    (y * weights).sum().backward()
    return [y.detach(), q.grad, k.grad, v.grad]


def mask_of(documents):
    """Where a token may look: its document's earlier tokens, and itself."""
    return torch.block_diag(*(torch.ones(n, n) for n in documents)).tril().bool()


def on_ranks(worker, cases):
    """The largest distance of this rank's part from the whole computed here, for each case."""
    far = []
    for way, order, documents, sizes, size in cases:
        parts, transport = order(documents, worker.world_size), GroupTransport()
        tokens, packed = documents, ()
        if not isinstance(documents, int):
            tokens, packed = sum(documents), documents
        own = [place for piece in parts[worker.rank] for place in piece]
        q, k, v, weights = inputs(sizes[0], tokens, *sizes[1:])
        found = trained(
            lambda *of: WAYS[way](*of, parts, transport, size, packed),  # noqa: B023
            *(one[:, :, own].contiguous() for one in (q, k, v, weights)),
        )
        seen = mask_of(packed or [tokens])
        plain = lambda *of: Core("explicit")(*of, seen)  # noqa: B023, E731
        wanted = [one[:, :, own] for one in trained(plain, q, k, v, weights)]
        far += [max((f - w).abs().max().item() if f.numel() else 0.0
                    for f, w in zip(found, wanted, strict=True))]  # fmt: skip
    return far


# way, order, tokens or documents, (sequences, heads, key heads), tokens of a block
CASES = [
    *((way, order, tokens, (2, 12, 12), 3)
      for way in WAYS for order in (contiguous, zigzag, striped) for tokens in (13, 3)),
    *((way, zigzag, 17, (2, 12, kept), size)
      for way, kept, size in [("ring", 1, 100), ("ring", 4, 2), ("gathered", 3, 5)]),
    ("ulysses", zigzag, 17, (1, 24, 12), 100),
    *((way, ragged, 11, (2, 12, 12), 2) for way in WAYS),
    *((way, contiguous, 5, (0, 12, 12), 2) for way in WAYS),
    *((way, order, (6, 1, 9, 2, 3), (2, 12, 12), 3)
      for way in WAYS for order in (contiguous, zigzag, striped)),
    *((way, zigzag, (1, 1), (1, 12, 12), 3) for way in WAYS),
    ("gathered", ragged, (4, 3, 4), (2, 12, 12), 2),
]  # fmt: skip


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_results_and_gradients_equal_one_process(ranks, number):
    cases = [one for one in CASES if one[1] is not ragged or number > 2]
    for row in ranks(number).run(on_ranks, cases=cases):
        assert dict(zip(map(str, cases), row, strict=True)) == pytest.approx(
            dict.fromkeys(map(str, cases), 0), abs=1e-13
        )


def taken(worker, config):
    mesh = make_mesh(Layout(cp=2, tp=2), "cpu")
    tokens = torch.arange(8).expand(1, 8)
    trainer = Recipe(layout=mesh.layout)(config, 0, mesh)
    own = trainer.take(Batch(tokens=tokens, targets=tokens)).tokens[0].tolist()
    return {"places": own, "rows": len(trainer.model.embedding.weight)}


@pytest.mark.parametrize(
    ("mixer", "parts"),
    [
        ("attention", [[0, 1, 6, 7], [2, 3, 4, 5]]),
        (("mamba2", "attention"), [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ],
)
def test_a_layout_cuts_tokens_in_the_best_order_and_layers_too(ranks, mixer, parts):
    config = GPTConfig(vocab=16, context=8, width=16, layers=2, heads=4, mixer=mixer,
                       mamba2=Mamba2Settings(state=3, head=8))  # fmt: skip
    found = list(ranks(4).run(taken, config=config))
    assert found == [{"places": parts[rank // 2], "rows": 8} for rank in range(4)]


CONFIG = GPTConfig(vocab=17, context=24, width=24, layers=3, heads=6, kv_heads=3)


def a_step(worker, way, config, documents=None):
    mesh = make_mesh(Layout(cp=worker.world_size), "cpu")
    transform = lambda *seams: context_parallel(*seams, attention=WAYS[way])  # noqa: E731
    trainer = Recipe(transform=transform, owner=Replicated)(config, 1, mesh, micro_batches=2)
    with ledger() as log:
        trainer.step(replace(random_batch(0, 4, 24, 17), documents=documents))
    calls = ("send",) if way == "ring" else ("all_to_all", "all_gather", "reduce_scatter")
    return {"sent": log.of(*calls).wire, "calls": len(log.of(*calls).entries)}


def both_at_once(worker, config, groups, size):
    mesh = make_mesh(Layout(dp=worker.world_size // groups // size, ring=groups, heads=size))
    transform = partial(context_parallel, axis=("ring", "heads"))
    trainer = Recipe(transform=transform, owner=Replicated)(config, 1, mesh)
    with ledger() as log:
        trainer.step(random_batch(0, 2, 24, 17))
    found = log.of("send", "all_to_all").entries
    return {"found": {(e.axes, e.call, e.payload) for e in found if e.wire}}


@pytest.mark.parametrize(
    ("groups", "size", "recompute"),
    [(2, 2, "none"), (2, 2, "selective"), (1, 2, "none"), (2, 1, "none")],
)
def test_usp_sends_heads_in_its_groups_and_keys_around_the_ring(ranks, groups, size, recompute):
    """Keys travel from group to group: U times the tokens of a rank, with 1/U of the heads."""
    config = replace(CONFIG, kv_heads=2, heads=6, recompute=recompute)
    of = {"head_width": 4, "sequences": 2, "recompute": recompute}
    heads = {"ranks": size, "length": 24 // groups, "heads": 6, "key_heads": 2}
    ring = {"ranks": groups, "length": 24, "heads": 6 // size, "key_heads": 2 // size}
    plan = [
        *attention_messages("ulysses", axis="heads", **heads, **of),
        *attention_messages("ring", axis="ring", **ring, **of),
    ]
    for row in ranks(4).run(both_at_once, config=config, groups=groups, size=size):
        assert row["found"] == {(one.axis, one.call, one.payload) for one in plan}


@pytest.mark.parametrize("way", WAYS)
def test_packed_sequences_have_messages_of_their_own(ranks, way):
    sizes = {"heads": 6, "key_heads": 3, "head_width": 4, "length": 24, "ranks": 3}
    plan = attention_messages(way, times=3 * 4, **sizes)
    documents = [[20, 4], [24], [5] * 4 + [4], [9, 15]]
    for row in ranks(3).run(a_step, way=way, config=CONFIG, documents=documents):
        assert row == {"sent": sum(wire(plan).values()), "calls": sum(one.times for one in plan)}


@pytest.mark.parametrize("recompute", CHOICES["recompute"])
@pytest.mark.parametrize("way", WAYS)
def test_a_step_sends_the_messages_of_the_plan(ranks, way, recompute):
    config = replace(CONFIG, recompute=recompute)
    sizes = {"heads": 6, "key_heads": 3, "head_width": 4, "length": 24, "sequences": 2, "ranks": 3}
    plan = attention_messages(way, recompute=recompute, times=3 * 2, **sizes)
    for row in ranks(3).run(a_step, way=way, config=config):
        assert row == {"sent": sum(wire(plan).values()), "calls": sum(one.times for one in plan)}


def test_a_ring_sends_keys_and_values_of_the_key_heads_alone():
    """2 · T/N · K d numbers in a step: K/H of what full heads would send."""
    few = attention_messages("ring", length=64, heads=8, key_heads=2, head_width=4, ranks=4)
    assert [(one.payload, one.times) for one in few] == [(2 * 16 * 2 * 4 * 4, 3 + 6)]
    both = ring_attention_bytes(length=64, kept=2 * 2 * 4, ranks=4)
    assert wire(few) == {"cp": sum(both.values())}
    with pytest.raises(ValueError, match="none of ring, ulysses, gathered"):
        attention_messages("rings", length=4, heads=1, key_heads=1, head_width=1, ranks=2)


def test_keys_travel_while_the_rank_computes():
    """And two buffers do for all of them."""
    log, kept = [], set()

    def begin(send, to, receive, source):
        log.append(("begin", to, source, send.numel(), receive.numel()))
        kept.update((send.data_ptr(), receive.data_ptr()))
        return [SimpleNamespace(wait=lambda: log.append("wait"))]

    peers = SimpleNamespace(rank=1, size=3, left=0, right=2, begin=begin)
    k, v = torch.ones(2, 1, 1, 4, 3), torch.ones(2, 1, 1, 4, 1)
    parts = [(range(5),), (range(5, 9),), (range(9, 11),)]
    for source, row in travelling(k, v, parts, peers):
        log.append((source, row.numel()))
    first, second = ("begin", 2, 0, 32, 40), ("begin", 2, 0, 40, 16)
    assert log == [first, (1, 32), "wait", second, (0, 40), "wait", (2, 16)]
    assert len(kept) == 2


def built(mixer="attention", **options):
    sizes = {"vocab": 13, "context": 8, "layers": 1, "width": 8, "heads": 2}
    return GPTConfig(mixer=mixer, **sizes, **options).build(torch.float64, "cpu")


PEERS = SimpleNamespace(rank=0, size=2)
ODD = Layout(heads=2, ring=2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cut_sequence(built(), PEERS), "need to know which tokens"),
        (lambda: cut_sequence(built("mamba", positions="learned"), PEERS), "positions .learned."),
        (lambda: cut_sequence(built("mamba"), PEERS, Cut(PEERS, zigzag)), "neighbouring tokens"),
        (lambda: CutCore(ring_attention, Cut(PEERS))(*[None] * 3, seen=True), "has no cache"),
        (lambda: long(built(), 9), "has 9 tokens, but the context allows 8"),
        (lambda: long(built(), 8, torch.arange(4)), "has no cache"),
        (lambda: built("mamba").locate(torch.zeros(1, 4), documents=[[4]]), "one document"),
        (lambda: two_axes(ODD, ("ring", "heads")), "in another order"),
        (lambda: two_axes(ODD, ("ring", "nodes")), "no axis 'nodes'"),
        (lambda: ulysses(*[torch.ones(1, 3, 4, 2)] * 3, [], PEERS), "3 heads .* 2 ranks"),
    ],
)
def test_what_cannot_be_cut_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def two_axes(layout, axis):
    config = GPTConfig(vocab=13, context=8, layers=1, width=8, heads=2)
    return context_parallel(config, 0, Seat(layout, 0), torch.float64, axis=axis)


def long(model, tokens, *places):
    cut = Cut(PEERS, zigzag)
    own = cut.take(random_batch(0, 2, tokens, 13))
    return cut_sequence(model, PEERS, cut).locate(own.tokens, *places)


def test_places_begin_anew_in_each_document():
    cut = Cut(PEERS, zigzag)
    batch = replace(random_batch(0, 3, 8, 13), documents=[[4, 4], [8], [1, 7]])
    own, places = cut.take(batch), torch.tensor([[0, 3, 4, 7], [0, 1, 6, 7], [0, 1, 2, 7]])
    assert torch.equal(own.tokens, batch.tokens.gather(1, places))
    assert torch.equal(own.targets, batch.targets.gather(1, places))
    model = built(dropout=0.1)
    plain = model.locate(batch.tokens, **batch.located())
    assert plain.places[0].tolist() == [0, 1, 2, 3] * 2
    assert all(torch.equal(*one[0].split(4)) for one in plain.angles)
    found = cut_sequence(model, PEERS, cut).locate(own.tokens, **own.located())
    for one in ("places", "key"):
        assert torch.equal(getattr(found, one), getattr(plain, one).gather(1, places))
    assert [n.tolist() for n in found.places] == [[0, 3, 0, 3], [0, 1, 6, 7], [0, 0, 1, 6]]
    for one, whole in zip(found.angles, plain.angles, strict=True):
        assert torch.equal(one, whole.gather(1, places[..., None].expand(one.shape)))


def test_places_are_those_of_the_order():
    positions = long(built(dropout=0.1), 8)
    assert positions.places.tolist() == [0, 1, 6, 7]
    assert torch.equal(
        positions.key, built(dropout=0.1).locate(torch.zeros(2, 8)).key[:, [0, 1, 6, 7]]
    )
