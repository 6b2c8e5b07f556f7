// CK's grouped_rowcolquant and grouped_tensorquant: one problem through its grouped kernel, scales on the sums.
#include "tile.hpp"

#include "ck_tile/ops/gemm_quant.hpp"
#include "ck_tile/ops/gemm_quant/kernel/grouped_gemm_quant_kernel.hpp"

#include "problem.hpp"

#include <vector>

namespace {

using A = Config::A;
using B = Config::B;

using Partitioner = ck_tile::GemmSpatiallyLocalTilePartitioner<Shape, 8, 4>;
using QuantTraits = ck_tile::TileGemmQuantTraits<Config::pad_m,
                                                 Config::pad_n,
                                                 Config::pad_k,
                                                 false, // neither scales nor B are preshuffled
                                                 false,
                                                 false,
                                                 RowMajor,
                                                 ColumnMajor,
                                                 RowMajor,
                                                 Config::quantisation,
                                                 RowMajor,
                                                 ColumnMajor,
                                                 false, // C is not transposed
                                                 false, // one buffer in LDS
                                                 Config::persistent>;
using BaseTraits  = ck_tile::TileGemmTraits<Config::pad_m, Config::pad_n, Config::pad_k, RowMajor, ColumnMajor, RowMajor>;
using BasePipeline =
    ck_tile::BaseGemmPipelineAgBgCrCompV3<ck_tile::GemmPipelineProblem<A, B, float, Shape, BaseTraits>>;
using Epilogue = ck_tile::CShuffleEpilogue<ck_tile::CShuffleEpilogueProblem<A,
                                                                            B,
                                                                            ck_tile::tuple<>,
                                                                            float,
                                                                            Config::C,
                                                                            ck_tile::tuple<>,
                                                                            RowMajor,
                                                                            ck_tile::element_wise::PassThrough,
                                                                            Config::tile_m,
                                                                            Config::tile_n,
                                                                            Config::warp_m,
                                                                            Config::warp_n,
                                                                            Config::warp_tile_m,
                                                                            Config::warp_tile_n,
                                                                            Config::warp_tile_k,
                                                                            false>>;

float launch(const problem& p, const bridge::Timing& timing)
{
    const auto m = static_cast<ck_tile::index_t>(p.m);
    const auto n = static_cast<ck_tile::index_t>(p.n);
    const auto k = static_cast<ck_tile::index_t>(p.k);
    // CK's kernel reads neither the counts nor the strides of these scales.
    const std::vector<ck_tile::QuantGroupedGemmHostArgs> groups{{p.at[OPERAND_A],
                                                                 p.at[OPERAND_B],
                                                                 p.at[OPERAND_C],
                                                                 p.at[OPERAND_A_SCALES],
                                                                 p.at[OPERAND_B_SCALES],
                                                                 1,
                                                                 m,
                                                                 n,
                                                                 k,
                                                                 1,
                                                                 1,
                                                                 k,
                                                                 k,
                                                                 n,
                                                                 1,
                                                                 1}};
    const auto stream = stream_of(timing);
    const auto loops = Partitioner::GetLoopNum(ck_tile::integer_least_multiple(k, Config::tile_k));
    const auto run   = [&](const auto hot_loop, const auto tail) {
        using Problem = ck_tile::GemmRowColTensorQuantPipelineProblem<A,
                                                                      B,
                                                                      float,
                                                                      float,
                                                                      Shape,
                                                                      QuantTraits,
                                                                      false,
                                                                      B,
                                                                      Config::scheduler,
                                                                      decltype(hot_loop)::value,
                                                                      decltype(tail)::value>;
        using Kernel  = ck_tile::QuantGroupedGemmKernel<Partitioner,
                                                       ck_tile::GemmPipelineAgBgCrCompV3<Problem>,
                                                       Epilogue,
                                                       Config::quantisation>;
        const auto arguments = Kernel::MakeKargs(groups);
        require_supported<Kernel>(arguments);
        const auto grid = [&] {
            if constexpr(Config::persistent)
                return Kernel::MaxOccupancyGridSize(stream);
            else
                return Kernel::GridSize(groups);
        }();
        const bridge::Buffer table(arguments.data(), arguments.size() * sizeof(ck_tile::QuantGemmTransKernelArg));
        const float took = ck_tile::launch_kernel(
            stream,
            ck_tile::make_kernel<Config::blocks_per_cu>(Kernel{},
                                                        grid,
                                                        Kernel::BlockSize(),
                                                        0,
                                                        ck_tile::cast_pointer_to_constant_address_space(table.get()),
                                                        groups.size()));
        bridge::hip(hipStreamSynchronize(timing.stream), "hipStreamSynchronize"); // the table ends here
        return took;
    };
    return BasePipeline::TailHandler(run, BasePipeline::BlockHasHotloop(loops), BasePipeline::GetBlockLoopTailNum(loops));
}

} // namespace

ENTRY_POINTS(BRIDGE_DEFINE)
