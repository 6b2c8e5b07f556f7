// GEMM with scales by groups of K through CK tile's QuantGemmKernel: what aquant, abquant and bquant share.
//
// The operation's own file defines, before including block_quant_launch.hpp,
//   template <bool Hot, auto Tail> using PipelineProblem = ...;
// The generated header's Config has the types, sizes and flags, CK's pipelines and the kind of quantisation.
#pragma once

#include "tile.hpp"

#include "ck_tile/ops/gemm_quant.hpp"

#include "shuffles.hpp"

namespace {

template <bool Column>
using Order = std::conditional_t<Column, ColumnMajor, RowMajor>;

using A        = Config::A;
using B        = Config::B;
using C        = Config::C;
using Scale    = Config::Scale;
using ALayout  = Order<Config::a_column_major>;
using BLayout  = Order<!Config::b_row_major>;
using AQLayout = Order<Config::aq_column_major>;
using BQLayout = Order<!Config::bq_row_major>;
using AGroup   = ck_tile::QuantGroupShape<ck_tile::sequence<1, 1, bridge::group_k_a>>;
using BGroup   = ck_tile::QuantGroupShape<ck_tile::sequence<1, bridge::group_n_b, bridge::group_k_b>>;

using Partitioner = Config::Partitioner<Shape>;
using Traits      = ck_tile::TileGemmQuantTraits<Config::pad_m,
                                            Config::pad_n,
                                            Config::pad_k,
                                            Config::preshuffle_aq,
                                            Config::preshuffle_bq,
                                            Config::preshuffle_b,
                                            ALayout,
                                            BLayout,
                                            RowMajor,
                                            Config::quantisation,
                                            AQLayout,
                                            BQLayout,
                                            Config::transpose_c,
                                            Config::double_smem_buffer>;

} // namespace
