// bquant, its MX forms, and CK's grouped_bquant: scales of B by groups of columns and of K.
#include "block_quant.hpp"

namespace {

using BaseProblem = ck_tile::GemmPipelineProblemBase<A, B, float, Shape, Traits>;
template <bool Hot, auto Tail>
using PipelineProblem = ck_tile::GemmBQuantPipelineProblem<A,
                                                          B,
                                                          Scale,
                                                          float,
                                                          Shape,
                                                          Traits,
                                                          BGroup,
                                                          A,
                                                          Config::scheduler,
                                                          Hot,
                                                          Tail,
                                                          std::is_same_v<A, B> ? ck_tile::CastPolicy::BeforeLDSWrite
                                                                               : ck_tile::CastPolicy::AfterLDSRead>;

} // namespace

#include "block_quant_launch.hpp"
