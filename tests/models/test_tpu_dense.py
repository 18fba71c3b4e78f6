"""Every model of pixels or boxes compiles for TPUs, without a needless exchange."""

from model_cases import DENSE
from tpu_programs import programs_of

test_a_forward_pass_is_local, test_a_training_step_exchanges_gradients = programs_of(
    DENSE
)
