import copy

import pytest
import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM, get_scheduler

from posttrain.models.optimizers import Muon, build_optimizer, orthogonalised, rate_at
from tests.tiny import CONFIG


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3, bias=False))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.tensor([0, 1, 2])).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_muon_gets_the_matrices_and_adamw_embeddings_norms_and_biases() -> None:
    model = small_model()
    muon, adamw = build_optimizer(model, "muon", 1e-2).param_groups
    assert {id(weight) for weight in muon["params"]} == {id(model[1].weight), id(model[3].weight)}
    others = (model[0].weight, model[1].bias, model[2].weight, model[2].bias)
    assert {id(weight) for weight in adamw["params"]} == set(map(id, others))


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_matrix_of_written_tokens_is_an_embedding_tied_or_not(is_tied: bool) -> None:
    one_layer = CONFIG | {"num_hidden_layers": 1}
    model = Qwen3ForCausalLM(Qwen3Config(**one_layer, vocab_size=8, head_dim=4, tie_word_embeddings=is_tied))
    muon, adamw = build_optimizer(model, "muon", 1e-2).param_groups
    assert id(model.lm_head.weight) in {id(weight) for weight in adamw["params"]}
    assert len(muon["params"]) == 7


def test_a_rate_set_from_outside_reaches_both() -> None:
    """A scheduler writes `param_groups`; at rate 0 nothing may move."""
    model = small_model()
    before = [weight.clone() for weight in model.parameters()]
    optimizer = build_optimizer(model, "muon", 1e-2)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    step(model, optimizer)
    assert all(weight.equal(old) for weight, old in zip(model.parameters(), before, strict=True))


def test_frozen_weights_are_left_out() -> None:
    model = small_model()
    model[3].weight.requires_grad_(False)
    for kind in ("muon", "adamw", "adamw_8bit"):
        weights = [weight for group in build_optimizer(model, kind, 1e-2).param_groups for weight in group["params"]]
        assert all(weight is not model[3].weight for weight in weights)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["muon", "adamw", "adamw_8bit"])
def test_a_saved_state_continues_as_if_never_stopped(kind: str, decay: float) -> None:
    straight = small_model()
    optimizer = build_optimizer(straight, kind, 1e-2, weight_decay=decay)
    step(straight, optimizer)
    resumed = small_model(seed=1)
    resumed.load_state_dict(straight.state_dict())
    again = build_optimizer(resumed, kind, 0.5, weight_decay=decay)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # as from a file
    for model, its_optimizer in ((straight, optimizer), (resumed, again)):
        step(model, its_optimizer)
    assert all(one.equal(same) for one, same in zip(straight.parameters(), resumed.parameters(), strict=True))


def test_averages_in_eight_bits_take_a_quarter_and_move_the_weights_alike() -> None:
    layers = [nn.Linear(128, 128, bias=False) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    start = layers[0].weight.detach().clone()
    optimizers = [
        build_optimizer(layer, kind, 1e-3) for layer, kind in zip(layers, ("adamw", "adamw_8bit"), strict=True)
    ]
    torch.manual_seed(0)
    for rows in torch.randn(20, 16, 128):
        for layer, optimizer in zip(layers, optimizers, strict=True):
            layer(rows).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    exact, rounded = layers
    assert (exact.weight - rounded.weight).norm() < 0.1 * (exact.weight - start).norm()
    sizes = [
        sum(value.nbytes for value in optimizer.state[layer.weight].values() if torch.is_tensor(value) and value.ndim)
        for layer, optimizer in zip(layers, optimizers, strict=True)
    ]
    assert sizes[1] < 0.3 * sizes[0]


def test_a_scheduler_meets_one_optimizer() -> None:
    optimizer = build_optimizer(small_model(), "muon", 1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda index: 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.005, 0.0015])
    assert scheduler.get_last_lr() == pytest.approx([0.005, 0.0015])


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_an_orthogonalised_matrix_keeps_its_directions_and_loses_its_lengths(shape: tuple[int, int]) -> None:
    """The quintic iteration by each singular value alone: s becomes as + bs³ + cs⁵, five times."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    left, lengths, right = torch.linalg.svd(matrix, full_matrices=False)
    a, b, c = 3.4445, -4.7750, 2.0315
    wanted = lengths / matrix.norm()
    for _ in range(5):
        wanted = a * wanted + b * wanted**3 + c * wanted**5
    found = orthogonalised(matrix, (a, b, c), 5, 1e-7)
    assert found.numpy() == pytest.approx((left @ torch.diag(wanted) @ right).numpy(), abs=1e-5)


@pytest.mark.parametrize("adjusted", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_goes_where_torchs_goes_but_for_its_rounding(adjusted: str, nesterov: bool) -> None:
    """bfloat16 keeps eight bits. On gradients of full rank: where directions are missing, the
    iteration blows its rounding up into them."""
    mine, its = (nn.Linear(12, 20, bias=False) for _ in range(2))
    its.load_state_dict(mine.state_dict())
    start = mine.weight.detach().clone()
    knobs = {"lr": 1e-2, "weight_decay": 0.1, "adjust_lr_fn": adjusted, "nesterov": nesterov}
    optimizers = Muon(mine.parameters(), **knobs), torch.optim.Muon(its.parameters(), **knobs)
    rows = torch.randn(40, 12, generator=torch.Generator().manual_seed(1))
    for _ in range(5):
        for model, optimizer in zip((mine, its), optimizers, strict=True):
            model(rows).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    way = (its.weight - start).norm()
    assert (mine.weight - its.weight).norm() < 0.03 * way


@pytest.mark.parametrize(
    ("schedule", "theirs"), [("linear", "linear"), ("constant", "constant_with_warmup"), ("cosine", "cosine")]
)
@pytest.mark.parametrize("num_warmup", [0, 1, 5, 19])
def test_the_course_of_the_rate_is_that_of_transformers(schedule: str, theirs: str, num_warmup: int) -> None:
    optimizer = torch.optim.SGD(small_model().parameters(), lr=1.0)
    scheduler = get_scheduler(theirs, optimizer, num_warmup_steps=num_warmup, num_training_steps=20)
    for place in range(20):
        [rate] = scheduler.get_last_lr()
        assert rate_at(place / 20, num_warmup / 20, schedule) == pytest.approx(rate, abs=1e-12)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("kind", ["muon", "adamw", "adamw_8bit"])
def test_weight_decay_shrinks_matrices_alone(kind: str) -> None:
    model, kept = small_model(), small_model()
    for one, decay in ((model, 0.5), (kept, 0.0)):
        step(one, build_optimizer(one, kind, 1e-2, weight_decay=decay))
    before = small_model()
    # AdamW of embeddings beside Muon has a smaller rate
    rates = {"0.weight": 0.3 * 1e-2 if kind == "muon" else 1e-2, "1.weight": 1e-2, "3.weight": 1e-2}
    for name, weight in model.state_dict().items():
        shrunk = before.state_dict()[name] * 0.5 * rates.get(name, 0.0)
        torch.testing.assert_close(weight, kept.state_dict()[name] - shrunk, msg=name)


@pytest.mark.parametrize("kind", ["muon", "adamw", "adamw_8bit"])
def test_betas_are_those_of_adamw(kind: str) -> None:
    groups = build_optimizer(small_model(), kind, 1e-2, betas=(0.5, 0.6), weight_decay=0.1).param_groups
    assert {tuple(group["betas"]) for group in groups if "betas" in group} == {(0.5, 0.6)}
