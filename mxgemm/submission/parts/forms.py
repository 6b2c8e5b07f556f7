"""The forms of the product, in the order in which they are tried."""

from mxgemm.submission.parts.aiter_form import aiter_form, aiter_tiles
from mxgemm.submission.parts.form import FormKind
from mxgemm.submission.parts.hip_form import hip_form, hip_tiles
from mxgemm.submission.parts.triton_form import triton_form, triton_tiles

FORMS = {
    "hip": FormKind(hip_tiles, hip_form),
    "triton": FormKind(triton_tiles, triton_form),
    "aiter": FormKind(aiter_tiles, aiter_form),
}
