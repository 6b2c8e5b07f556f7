// rowcolquant: an fp32 scale per row of A and per column of B; CK's tile engine takes no M of 64 or less.
#define QUANTISATION RowColQuant
#define LEAST_M 65
#define SCALES(rows) (rows)
#define RUN dispatcher_run_rowcolquant_gemm
#define RUN_DEVICE dispatcher_run_rowcolquant_gemm_device
#include "quant.hpp"
