/* A driver that launches nothing: it keeps what it was called with, after checking the packed-argument list.

   cc -shared -fPIC driver_double.c            the names and constants of HIP
   cc -shared -fPIC -DCUDA driver_double.c     those of CUDA, with a current context for each thread */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#ifdef CUDA
#define NAME(x) cu##x
#define LAUNCH cuLaunchKernel
#define END ((void*)0)
#define NO_CONTEXT 201
#define CONTEXT ((void*)0xC0)
static __thread void* current;
#else
#define NAME(x) hip##x
#define LAUNCH hipModuleLaunchKernel
#define END ((void*)3)
#endif

enum { INVALID_VALUE = 1, NOT_FOUND = 500, MOST = 4096 };

struct launch {
  void *function, *stream, *parameters;
  unsigned grid[3], block[3], shared;
  size_t size;
  unsigned char bytes[MOST];
  unsigned count;
  unsigned attributes[18 * 2];
};

struct launch launches[MOST];
int launch_count, fail_next_with, delay_loops;
char loaded[64], asked_for[64];

int NAME(ModuleLoadData)(void** module, const void* image) {
#ifdef CUDA
  if (!current) return NO_CONTEXT;
#endif
  if (memcmp(image, "\177ELF", 4)) return INVALID_VALUE;
  memcpy(loaded, image, sizeof loaded);
  *module = (void*)0x40;
  return 0;
}

int NAME(ModuleGetFunction)(void** function, void* module, const char* name) {
  if (module != (void*)0x40) return INVALID_VALUE;
  snprintf(asked_for, sizeof asked_for, "%s", name);
  *function = (void*)0xF0;
  return 0;
}

static int keep(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                unsigned shared, void* stream, void** parameters, void** extra, const void* attributes, unsigned count) {
  if (extra[0] != (void*)1 || extra[2] != (void*)2 || extra[4] != END) return INVALID_VALUE;
  size_t size = *(size_t*)extra[3];
  if (size > MOST) return INVALID_VALUE;
  for (volatile int i = 0; i < delay_loops; i++) {
  }
  int at = __atomic_fetch_add(&launch_count, 1, __ATOMIC_SEQ_CST);
  struct launch* kept = &launches[at % MOST];
  kept->function = function, kept->stream = stream, kept->parameters = parameters;
  kept->grid[0] = gx, kept->grid[1] = gy, kept->grid[2] = gz;
  kept->block[0] = bx, kept->block[1] = by, kept->block[2] = bz;
  kept->shared = shared, kept->size = size, kept->count = count;
  memcpy(kept->attributes, attributes, 72 * count);
  memcpy(kept->bytes, extra[1], size);
  return 0;
}

int LAUNCH(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
           void* stream, void** parameters, void** extra) {
  if (fail_next_with) {
    int status = fail_next_with;
    fail_next_with = 0;
    return status;
  }
#ifdef CUDA
  if (!current) return NO_CONTEXT;
#endif
  return keep(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra, 0, 0);
}

#ifdef CUDA
struct attribute {
  int id, padding;
  unsigned value[16];
};
struct config {
  unsigned grid[3], block[3], shared;
  void* stream;
  struct attribute* attributes;
  unsigned count;
};
int shared_asked_for, capture_mode;

int cuLaunchKernelEx(const struct config* c, void* function, void** parameters, void** extra) {
  if (fail_next_with) {
    int status = fail_next_with;
    fail_next_with = 0;
    return status;
  }
  if (!current) return NO_CONTEXT;
  if (c->shared > 48 << 10 && c->shared > (unsigned)shared_asked_for) return INVALID_VALUE;
  return keep(function, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream,
              parameters, extra, c->attributes, c->count);
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
  if (function != (void*)0xF0 || attribute != 8 || value > 232448) return INVALID_VALUE;
  shared_asked_for = value;
  return 0;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  int before = capture_mode;
  capture_mode = *mode, *mode = before;
  return 0;
}
#endif

static const char* words(int status) {
  switch (status) {
    case INVALID_VALUE: return "double: invalid value";
    case NOT_FOUND: return "double: named symbol not found";
    default: return NULL;
  }
}

#ifdef CUDA
int cuGetErrorString(int status, const char** text) {
  *text = words(status);
  return *text ? 0 : INVALID_VALUE;
}
int cuCtxGetCurrent(void** context) {
  *context = current;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = CONTEXT;
  return 0;
}
int cuCtxSetCurrent(void* context) {
  if (context != CONTEXT) return INVALID_VALUE;
  current = context;
  return 0;
}
#else
const char* hipGetErrorString(int status) { return words(status); }
#endif
