/* The entry points of each operation; kernel.h says which one this library has. */

#ifdef OPERATION_MX_GEMM
static struct problem mx_problem(const void *a, const void *b, void *c, const uint8_t *scale_a, const uint8_t *scale_b,
                                 int m, int n, int k, int k_batch)
{
    return (struct problem){a, b, scale_a, scale_b, c, m, n, k, k_batch, k, k, n};
}

EXPORT int dispatcher_run_mx_gemm(const void *A, const void *B, void *C, const uint8_t *scale_a, const uint8_t *scale_b,
                                  int M, int N, int K, int k_batch, float *time_ms)
{
    struct problem p = mx_problem(A, B, C, scale_a, scale_b, M, N, K, k_batch);
    return run_host(&p, time_ms);
}

EXPORT int dispatcher_run_mx_gemm_device(const void *A, const void *B, void *C, const uint8_t *scale_a,
                                         const uint8_t *scale_b, int M, int N, int K, int k_batch, void *stream,
                                         float *time_ms)
{
    struct problem p = mx_problem(A, B, C, scale_a, scale_b, M, N, K, k_batch);
    return run_device(&p, stream, time_ms);
}
#endif

#if defined OPERATION_ROWCOLQUANT || defined OPERATION_TENSOR_QUANT
#ifdef OPERATION_ROWCOLQUANT
#define RUN dispatcher_run_rowcolquant_gemm
#define RUN_DEVICE dispatcher_run_rowcolquant_gemm_device
#else
#define RUN dispatcher_run_tensor_quant_gemm
#define RUN_DEVICE dispatcher_run_tensor_quant_gemm_device
#endif

EXPORT int RUN(const void *A, const void *B, const void *AQ, const void *BQ, void *C, int64_t M, int64_t N, int64_t K,
               int64_t stride_A, int64_t stride_B, int64_t stride_C, int k_batch, float *time_ms)
{
    struct problem p = {A, B, AQ, BQ, C, M, N, K, k_batch, stride_A, stride_B, stride_C};
    return run_host(&p, time_ms);
}

EXPORT int RUN_DEVICE(const void *A, const void *B, const void *AQ, const void *BQ, void *C, int64_t M, int64_t N,
                      int64_t K, int64_t stride_A, int64_t stride_B, int64_t stride_C, int k_batch, void *stream,
                      float *time_ms)
{
    struct problem p = {A, B, AQ, BQ, C, M, N, K, k_batch, stride_A, stride_B, stride_C};
    return run_device(&p, stream, time_ms);
}
#endif
