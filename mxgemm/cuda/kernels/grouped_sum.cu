// out[t] = sum over j of weights[t][j] y[t TOP_K + j], in fp32 and in the order of j: the end of a layer of experts.
// Pairs of no expert add nothing, whatever lies in their rows. Workgroups are those of columns first, then of tokens.
//
// Macros: TOP_K, pairs of a token. It overlaps the launch before it, which writes y.
#include "floats.h"
#include "routing.h"

constexpr int LANES = 128, EACH = 4;  // lanes of a workgroup, columns of a lane

struct SumArguments {
  const float* y;  // [pairs][columns]
  const u8* weights;
  u8* out;
  Routing routing;
  i64 out_row, out_column;
  int columns, weight_type, out_type, unused;
};

extern "C" __global__ void __launch_bounds__(LANES) grouped_sum(const SumArguments p) {
  const int across = (p.columns + LANES * EACH - 1) / (LANES * EACH);
  const int token = static_cast<int>(blockIdx.x) / across;
  const int column = static_cast<int>(blockIdx.x) % across * (LANES * EACH) + static_cast<int>(threadIdx.x);
  bool there[TOP_K];
  float factor[TOP_K];
#pragma unroll
  for (int j = 0; j < TOP_K; j++) {
    there[j] = local_expert(p.routing, token * TOP_K + j) >= 0;
    factor[j] = load_float(p.weights, static_cast<i64>(token) * TOP_K + j, p.weight_type);
  }
  wait_for_earlier_launches();
  let_later_launches_begin();
  float sum[EACH] = {}, y[TOP_K][EACH];
#pragma unroll
  for (int j = 0; j < TOP_K; j++)
#pragma unroll
    for (int i = 0; i < EACH; i++)
      y[j][i] = there[j] && column + i * LANES < p.columns
                    ? float_of(load_u32(p.y + (static_cast<i64>(token) * TOP_K + j) * p.columns + column + i * LANES))
                    : 0.f;
#pragma unroll
  for (int j = 0; j < TOP_K; j++)
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (there[j]) sum[i] += factor[j] * y[j][i];
#pragma unroll
  for (int i = 0; i < EACH; i++)
    if (column + i * LANES < p.columns)
      store_float(p.out, token * p.out_row + (column + i * LANES) * p.out_column, p.out_type, sum[i]);
}
