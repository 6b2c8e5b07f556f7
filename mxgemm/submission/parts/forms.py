"""The forms of the product, in the order in which they are tried."""

from mxgemm.submission.parts.aiter_form import aiter_form
from mxgemm.submission.parts.hip_form import hip_form
from mxgemm.submission.parts.triton_form import triton_form

FORMS = {"hip": hip_form, "triton": triton_form, "aiter": aiter_form}
