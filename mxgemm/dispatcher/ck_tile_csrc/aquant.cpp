// aquant, and CK's grouped_aquant: scales of A by groups of K.
#include "block_quant.hpp"

namespace {

using BaseProblem = ck_tile::GemmPipelineProblemBase<A, B, float, Shape, Traits>;
template <bool Hot, auto Tail>
using PipelineProblem = ck_tile::GemmAQuantPipelineProblem<A,
                                                          Scale,
                                                          B,
                                                          float,
                                                          Shape,
                                                          Traits,
                                                          AGroup,
                                                          Config::transpose_c,
                                                          A,
                                                          Config::scheduler,
                                                          Hot,
                                                          Tail>;

} // namespace

#include "block_quant_launch.hpp"
