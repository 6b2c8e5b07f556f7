// abquant, and CK's grouped_abquant: scales of A by groups of K, of B by groups of columns and of K.
#include "block_quant.hpp"

namespace {

// fp8 and bf8 are multiplied as they are; what fp4 becomes is CK's choice.
using Compute     = std::conditional_t<std::is_same_v<A, ck_tile::pk_fp4_t>, void, A>;
using BaseProblem = ck_tile::GemmPipelineProblemBase<A, B, float, Shape, Traits, Compute, Compute>;
template <bool Hot, auto Tail>
using PipelineProblem = ck_tile::GemmABQuantPipelineProblem<A,
                                                           Scale,
                                                           B,
                                                           Scale,
                                                           float,
                                                           Shape,
                                                           Traits,
                                                           AGroup,
                                                           BGroup,
                                                           Config::transpose_c,
                                                           Compute,
                                                           Config::scheduler,
                                                           Hot,
                                                           Tail>;

} // namespace

#include "block_quant_launch.hpp"
