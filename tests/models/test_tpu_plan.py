"""The memory that the compiler of TPUs says, beside the lower bound of `plan`."""

import json

import pytest
from processes import run_python

from keras_attn.cli.tpu_compile import Request, compile_in_a_process

pytestmark = pytest.mark.tpu

PLAN = """
import json, sys
from keras_attn import models
found = models.plan(sys.argv[1], **json.loads(sys.argv[2]))
print(json.dumps([found.weights, found.optimizer_state, found.inputs]))
"""


def planned(name, **options):
    """Weights, optimizer and inputs by `plan`, which needs TensorFlow: in a process."""
    arguments = ("-c", PLAN, name, json.dumps(options))
    printed = run_python(*arguments, KERAS_BACKEND="tensorflow")
    return json.loads(printed.splitlines()[-1])


@pytest.mark.variation
def test_the_compiler_answers():
    """A published model, on four chips; what it says of one is in RESULTS.md."""
    request = Request(
        "bert_tiny", True, None, 8, 16, "mixed_bfloat16", "sgd", "v5e:2x2"
    )
    answer = compile_in_a_process(request)
    assert answer.error is None, answer.error
    weights, optimizer, inputs = planned(
        "bert_tiny", batch=2, sequence=16, dtype="mixed_bfloat16", optimizer="sgd"
    )
    # Labels, metrics and whole tiles come on top, and at this size little else.
    assert weights + optimizer + inputs <= answer.arguments
    assert answer.arguments <= 1.15 * weights
    # All gradients, in float32 or in bfloat16, and the loss.
    assert weights / 2 <= answer.reduced <= 1.05 * weights


def test_an_unknown_model_is_an_error():
    request = Request("bert_tin", True, None, 8, 16, None, "sgd", "v5e:2x2")
    answer = compile_in_a_process(request)
    assert answer.error is not None and "bert_tiny" in answer.error
