"""The contract of every model of pixels or boxes: all ways to fit give the same."""

import pytest
from model_cases import DENSE, GRAPHS
from model_fits import fits_of

pytestmark = pytest.mark.compiled

test_a_fit_with_xla_is_the_same, test_a_fit_in_a_remat_scope_is_the_same = fits_of(
    [case for case in GRAPHS if case in DENSE]
)
