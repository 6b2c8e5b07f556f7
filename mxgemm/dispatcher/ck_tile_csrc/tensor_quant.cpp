// tensor_quant: one fp32 scale for A and one for B.
#define QUANTISATION TensorQuant
#define LEAST_M 1
#define SCALES(rows) 1
#define RUN dispatcher_run_tensor_quant_gemm
#define RUN_DEVICE dispatcher_run_tensor_quant_gemm_device
#include "quant.hpp"
