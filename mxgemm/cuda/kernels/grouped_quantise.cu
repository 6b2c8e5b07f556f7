// See grouped_quantise.h. It overlaps launches on both sides: who reads the bytes waits for it.
#include "grouped_quantise.h"

constexpr int LANES = 128;  // of a workgroup

extern "C" __global__ void __launch_bounds__(LANES) grouped_quantise(const QuantiseArguments p) {
  wait_for_earlier_launches();
  let_later_launches_begin();
  quantise_eight(p, static_cast<int>(blockIdx.x) * LANES + static_cast<int>(threadIdx.x));
}
