"""The losses of TRL, run on random numbers: DPO, rewards of pairs, GRPO and RLOO.

`python tests/parity/trl_references.py` writes `trl.npz`. It needs PyTorch and the files
of TRL 1.16, which nothing else does, from a folder of its own:
`pip install --no-deps --target FOLDER trl==1.16.0`, and FOLDER on the path.

TRL is not imported, because it needs a dozen packages: the methods that compute a loss
are taken out of its files and called with an object that has what they read.
"""

import ast
import contextlib
import importlib.util
import math
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.

FILE = Path(__file__).parent / "trl.npz"
BETAS = (0.1, 0.5)
# Kind and label smoothing.
DPO_CASES = [
    ("sigmoid", 0.0),
    ("ipo", 0.0),
    ("hinge", 0.0),
    ("robust", 0.0),
    ("robust", 0.2),
]
# Margin and weight of centering.
REWARD_CASES = [(False, 0.0), (True, 0.0), (False, 0.01), (True, 0.3)]
# Average, weight of the KL, range of the ratio below and above 1.
GRPO_CASES = [
    ("sequence", 0.0, 0.2, 0.2),
    ("sequence", 0.04, 0.2, 0.28),
    ("token", 0.0, 0.1, 0.3),
    ("token", 0.5, 0.2, 0.2),
]
GROUP = 3
PAIRS, LENGTH, VOCABULARY = 5, 7, 11


def make_inputs() -> dict[str, np.ndarray]:
    """Random numbers, of which the figures are a function."""
    rng = np.random.default_rng(0)
    rows = 2 * PAIRS
    mask = np.zeros((rows, LENGTH), "int64")
    for row in range(rows):  # A completion inside each row, never at its start.
        start = rng.integers(1, LENGTH - 1)
        mask[row, start : rng.integers(start + 1, LENGTH + 1)] = 1
    answers = 4 * GROUP
    numbers = {
        "logits": rng.normal(0, 2, (rows, LENGTH, VOCABULARY)),
        "reference_logits": rng.normal(0, 2, (rows, LENGTH, VOCABULARY)),
        "scores": rng.normal(0, 1, (PAIRS, 2)),
        "margins": rng.normal(0, 1, PAIRS) ** 2,
        "log_probabilities": rng.normal(-2, 0.3, (answers, LENGTH)),
        "rewards": rng.normal(0, 1, answers),
    }
    for name in ("old_log_probabilities", "reference_log_probabilities"):
        change = rng.normal(0, 0.4, (answers, LENGTH))
        numbers[name] = numbers["log_probabilities"] + change
    numbers["rewards"][:GROUP] = 0.1
    real = np.arange(LENGTH) < rng.integers(1, LENGTH + 1, (answers, 1))
    real[1::2] = real[1::2, ::-1]  # Padding at the left.
    arrays = {name: x.astype("float32") for name, x in numbers.items()}
    ids = rng.integers(0, VOCABULARY, (rows, LENGTH))
    return arrays | {"token_ids": ids, "completion_mask": mask, "mask": real}


def make_figures(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What TRL computes from the inputs, by name of the figure."""
    trl = _Source()
    given = {name: torch.tensor(x) for name, x in inputs.items()}
    figures = {
        "token_log_probabilities": trl.log_softmax(
            given["logits"][:, :-1], given["token_ids"][:, 1:], temperature=0.7
        ),
        "token_entropies": trl.entropy(given["logits"]),
    }
    for kind, smoothing in DPO_CASES:
        for beta in BETAS:
            figures[f"dpo_{kind}_{smoothing}_{beta}"] = trl.dpo(
                given, kind, smoothing, beta
            )
    for has_margin, center in REWARD_CASES:
        name = f"reward_{has_margin}_{center}"
        figures[name] = trl.reward(given, has_margin, center)
    advantages = trl.grpo_advantages(given["rewards"])
    figures["grpo_advantages"] = advantages
    for case in GRPO_CASES:
        name = "grpo_" + "_".join(map(str, case))
        figures[name] = trl.grpo(given, advantages, *case)
    figures["rloo_advantages"] = trl.rloo_advantages(given)
    figures["rloo"] = trl.rloo(given, figures["rloo_advantages"])
    return {name: figure.numpy() for name, figure in figures.items()}


class _Source:
    """TRL's own functions, from its files."""

    def __init__(self):
        found = importlib.util.find_spec("trl")
        if found is None or found.origin is None:
            raise ModuleNotFoundError("TRL is not on the path; see the module")
        folder = Path(found.origin).parent / "trainer"
        self._trees = {
            name: ast.parse((folder / f"{name}.py").read_text("utf-8"))
            for name in (
                "utils",
                "dpo_trainer",
                "reward_trainer",
                "grpo_trainer",
                "rloo_trainer",
            )
        }
        self._names: dict[str, Any] = {
            "torch": torch,
            "nn": torch.nn,
            "F": torch.nn.functional,
            "math": math,
            "is_triton_available": lambda: False,
            "is_peft_model": lambda model: False,
            "disable_gradient_checkpointing": lambda *_: contextlib.nullcontext(),
        }
        for name in ("nanstd", "nanmin", "nanmax"):
            self._names[name] = self._function("utils", name)
        self.log_softmax = self._function("utils", "selective_log_softmax")
        self.entropy = self._function("utils", "entropy_from_logits")

    def dpo(self, given, kind, smoothing, beta):
        """The loss of each pair, from logits: `_compute_loss` returns the mean."""
        compute = self._function("dpo_trainer", "_compute_loss")

        def model_of(logits):
            def model(*, labels, input_ids, use_cache, fused_lm_head):
                next_ids = labels[:, 1:]
                is_label = next_ids != -100
                found = self.log_softmax(logits[:, :-1], next_ids.clamp(min=0))
                numbers = torch.where(is_label, found, 0.0)
                return SimpleNamespace(
                    log_probs=numbers,
                    entropy=numbers,
                    mean_logits=numbers,
                    is_top1=is_label,
                )

            return model

        losses = []
        for pair in range(PAIRS):
            rows = [2 * pair, 2 * pair + 1]
            trainer = _trainer(
                aux_loss_enabled=False,
                ld_alpha=None,
                precompute_ref_logps=False,
                ref_model=model_of(given["reference_logits"][rows]),
                f_divergence_type="reverse_kl",
                loss_types=[kind],
                loss_weights=[1.0],
                beta=beta,
                label_smoothing=smoothing,
                use_weighting=False,
                args=SimpleNamespace(gradient_checkpointing_kwargs=None),
            )
            inputs = {
                "input_ids": given["token_ids"][rows],
                "completion_mask": given["completion_mask"][rows],
            }
            model = model_of(given["logits"][rows])
            losses.append(compute(trainer, model, inputs, return_outputs=False))
        return torch.stack(losses)

    def reward(self, given, has_margin, center):
        """The mean loss of the pairs of scores."""
        compute = self._function("reward_trainer", "compute_loss")
        trainer = _trainer(
            args=SimpleNamespace(center_rewards_coefficient=center or None)
        )
        logits = given["scores"].T.reshape(-1, 1)  # All chosen, then all rejected.
        inputs = {"margin": given["margins"]} if has_margin else {}
        return compute(trainer, lambda **_: SimpleNamespace(logits=logits), inputs)

    def grpo_advantages(self, rewards):
        """The lines of `_generate_and_score_completions`."""
        for node in ast.walk(self._trees["grpo_trainer"]):
            if (
                isinstance(node, ast.If)
                and "aggregation == 'sum_then_normalize'" in ast.unparse(node.test)
                and "mean_grouped_rewards" in ast.unparse(node)
            ):
                names = {
                    **self._names,
                    "self": SimpleNamespace(
                        scale_rewards="group", reward_weights=torch.ones(1)
                    ),
                    "rewards_per_func": rewards[:, None],
                    "num_generations": GROUP,
                    "device": "cpu",
                    "unscorable_mask": torch.zeros(len(rewards), dtype=torch.bool),
                }
                _execute(node.body, names)
                return names["advantages"]
        raise LookupError("this version of TRL has other lines")

    def grpo(self, given, advantages, average, kl_weight, below, above):
        """The loss of a batch."""
        compute = self._function("grpo_trainer", "_compute_loss")
        trainer = self._policy_trainer(
            given,
            top_entropy_quantile=1.0,
            off_policy_mask_threshold=None,
            importance_sampling_level="token",
            beta=kl_weight,
            epsilon_low=below,
            epsilon_high=above,
            loss_type={"sequence": "grpo", "token": "bnpo"}[average],
            use_vllm=False,
            _entropy_bonus_enabled=False,
            args=SimpleNamespace(use_bias_correction_kl=False, delta=None),
        )
        inputs = {
            **_prompts(given),
            "advantages": advantages,
            "old_per_token_logps": given["old_log_probabilities"],
            "ref_per_token_logps": given["reference_log_probabilities"],
        }
        return compute(trainer, None, inputs)

    def rloo_advantages(self, given):
        """The lines of `_generate_and_score_completions`, with the KL in the reward."""
        tree = self._trees["rloo_trainer"]
        (function,) = (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            and node.name == "_generate_and_score_completions"
        )
        lines = [ast.unparse(node) for node in function.body]
        (first,) = (i for i, x in enumerate(lines) if "rewards - self.beta * kl" in x)
        last = next(i for i, x in enumerate(lines) if "torch.nan_to_num(adv" in x)
        names = {
            **self._names,
            "self": SimpleNamespace(beta=0.05, normalize_advantages=False),
            "rewards": given["rewards"],
            "old_per_token_logps": given["old_log_probabilities"],
            "ref_per_token_logps": given["reference_log_probabilities"],
            "completion_mask": given["mask"],
            "num_generations": GROUP,
            "gather": lambda x: x,
        }
        _execute(function.body[first : last + 1], names)
        return names["advantages"]

    def rloo(self, given, advantages):
        """The loss of a batch."""
        compute = self._function("rloo_trainer", "_compute_loss")
        trainer = self._policy_trainer(given, epsilon_low=0.2, epsilon_high=0.2)
        old = (given["old_log_probabilities"] * given["mask"]).sum(1)
        inputs = {**_prompts(given), "advantages": advantages, "old_logps": old}
        return compute(trainer, None, inputs)

    def _policy_trainer(self, given, **attributes):
        found = given["log_probabilities"], torch.zeros_like(given["mask"]), None
        return _trainer(
            aux_loss_enabled=False,
            current_gradient_accumulation_steps=1,
            _get_per_token_logps_and_entropies=lambda *_, **__: found,
            **attributes,
        )

    def _function(self, module, name):
        """A function or method of a module, alone."""
        nodes = [
            node
            for node in ast.walk(self._trees[module])
            if isinstance(node, ast.FunctionDef) and node.name == name
        ]
        (node,) = nodes
        names = dict(self._names)
        node.returns = None
        for argument in node.args.args:
            argument.annotation = None
        _execute([node], names)
        return names[name]


def _trainer(**attributes):
    accelerator = SimpleNamespace(
        device="cpu",
        gather=lambda x: x,
        gather_for_metrics=lambda x: x,
        reduce=lambda x, reduction: x,
    )
    return SimpleNamespace(
        model=SimpleNamespace(training=False),
        accelerator=accelerator,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0,
        **attributes,
    )


def _prompts(given):
    """No prompts, and completions of which only the masks are read."""
    none = torch.zeros((len(given["mask"]), 0), dtype=torch.int64)
    mask = given["mask"].to(torch.float32)
    return {
        "prompt_ids": none,
        "prompt_mask": none,
        "completion_ids": mask,
        "completion_mask": mask,
    }


def _execute(nodes, names):
    module = ast.fix_missing_locations(ast.Module(body=list(nodes), type_ignores=[]))
    exec(compile(module, "<trl>", "exec"), names)


if __name__ == "__main__":
    arrays = make_inputs()
    found = {f"figure_{name}": x for name, x in make_figures(arrays).items()}
    everything: Any = arrays | found
    np.savez_compressed(FILE, **everything)
