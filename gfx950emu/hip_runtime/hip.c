/* A HIP runtime without a GPU: what the dispatcher's libraries call of libamdhip64, with host memory for device memory.

   Launches go to a callback, which runs the code object in the emulator, or records it. Every call can be made to fail.
   Memory is filled with 0xFF (a NaN in every float type) and is known by address and size, so that a copy beyond an
   allocation fails and what was not freed can be counted. */
#define _GNU_SOURCE /* memmem */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NO_BINARY = 209, NOT_FOUND = 500, LAUNCH_FAILED = 719 };
enum { MOST = 1024, ARCH_OFFSET = 1160 /* of gcnArchName in hipDeviceProp_tR0600 */ };
enum { EM_AMDGPU = 224, MACH_MASK = 0xFF, MACH_GFX942 = 0x4C, MACH_GFX950 = 0x4F };

struct module {
    const unsigned char *code;
    size_t bytes;
    char kernel[256];
};
struct launch {
    const void *code;
    size_t code_bytes;
    const char *kernel;
    unsigned grid[3], block[3], lds;
    void *stream;
    const void *kernarg;
    size_t kernarg_bytes;
};
typedef int (*launch_callback)(const struct launch *);

static struct {
    char arch[64], fail_in[64];
    int devices, device, fail_after, fail_with;
    launch_callback callback;
    struct {
        char *address;
        size_t bytes;
    } memory[MOST];
    int modules, events;
    char log[1 << 16];
} hip = {.arch = "gfx950", .devices = 1};

/* ---- control ---- */

void emulated_set_device(const char *arch, int devices, int current)
{
    snprintf(hip.arch, sizeof hip.arch, "%s", arch);
    hip.devices = devices;
    hip.device = current;
}
void emulated_on_launch(launch_callback callback) { hip.callback = callback; }
void emulated_fail(const char *function, int after, int error)
{
    snprintf(hip.fail_in, sizeof hip.fail_in, "%s", function);
    hip.fail_after = after;
    hip.fail_with = error;
}
const char *emulated_log(void) { return hip.log; }
void emulated_clear_log(void) { hip.log[0] = '\0'; }
int emulated_modules(void) { return hip.modules; }
int emulated_events(void) { return hip.events; }
int emulated_allocations(char **addresses, size_t *bytes)
{
    int found = 0;
    for (int i = 0; i < MOST; i++) {
        if (!hip.memory[i].address)
            continue;
        addresses[found] = hip.memory[i].address;
        bytes[found++] = hip.memory[i].bytes;
    }
    return found;
}
int emulated_most_allocations(void) { return MOST; }

/* Notes a call; returns the error that it is to fail with. */
static int called(const char *function)
{
    size_t used = strlen(hip.log), length = strlen(function);
    if (used + length + 2 < sizeof hip.log)
        snprintf(hip.log + used, sizeof hip.log - used, "%s\n", function);
    if (strcmp(function, hip.fail_in) == 0 && hip.fail_after-- == 0) {
        hip.fail_in[0] = '\0';
        return hip.fail_with;
    }
    return SUCCESS;
}

#define CALLED                                                                                                         \
    do {                                                                                                               \
        int error = called(__func__);                                                                                  \
        if (error)                                                                                                     \
            return error;                                                                                              \
    } while (0)

/* ---- devices ---- */

const char *hipGetErrorString(int error) { return error == NO_DEVICE ? "no ROCm-capable device is detected" : "an error"; }
int hipInit(unsigned flags)
{
    CALLED;
    return flags ? INVALID : hip.devices ? SUCCESS : NO_DEVICE;
}
int hipGetDeviceCount(int *count)
{
    CALLED;
    *count = hip.devices;
    return SUCCESS;
}
int hipGetDevice(int *device)
{
    CALLED;
    *device = hip.device;
    return SUCCESS;
}
int hipGetDevicePropertiesR0600(char *properties, int device)
{
    CALLED;
    if (device < 0 || device >= hip.devices)
        return INVALID;
    strcpy(properties, "AMD Instinct, emulated");
    sprintf(properties + ARCH_OFFSET, "%s:sramecc+:xnack-", hip.arch);
    return SUCCESS;
}

/* ---- memory ---- */

static int allocation(const void *pointer, size_t bytes)
{
    const char *at = pointer;
    for (int i = 0; i < MOST; i++)
        if (hip.memory[i].address && at >= hip.memory[i].address &&
            at + bytes <= hip.memory[i].address + hip.memory[i].bytes)
            return i;
    return -1;
}

int hipMalloc(void **pointer, size_t bytes)
{
    CALLED;
    for (int i = 0; i < MOST; i++) {
        if (hip.memory[i].address)
            continue;
        if (posix_memalign(pointer, 256, bytes ? bytes : 1))
            return OUT_OF_MEMORY;
        memset(*pointer, 0xFF, bytes);
        hip.memory[i].address = *pointer;
        hip.memory[i].bytes = bytes;
        return SUCCESS;
    }
    return OUT_OF_MEMORY;
}
int hipFree(void *pointer)
{
    CALLED;
    for (int i = 0; i < MOST; i++) {
        if (hip.memory[i].address == pointer) {
            free(pointer);
            hip.memory[i].address = NULL;
            return SUCCESS;
        }
    }
    return INVALID;
}
int hipMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    CALLED;
    if ((kind != 1 && kind != 2) || allocation(kind == 1 ? to : from, bytes) < 0)
        return INVALID;
    memcpy(to, from, bytes);
    return SUCCESS;
}

/* ---- modules and launches ---- */

int hipModuleLoadData(void **module, const unsigned char *image)
{
    uint16_t machine, sections, section_bytes;
    uint64_t section_table;
    uint32_t flags;
    struct module *found;

    CALLED;
    memcpy(&machine, image + 18, sizeof machine);
    memcpy(&section_table, image + 40, sizeof section_table);
    memcpy(&flags, image + 48, sizeof flags);
    memcpy(&section_bytes, image + 58, sizeof section_bytes);
    memcpy(&sections, image + 60, sizeof sections);
    if (memcmp(image, "\177ELF", 4) || machine != EM_AMDGPU)
        return INVALID;
    if ((flags & MACH_MASK) != (strcmp(hip.arch, "gfx942") ? MACH_GFX950 : MACH_GFX942))
        return NO_BINARY;
    found = calloc(1, sizeof *found);
    if (!found)
        return OUT_OF_MEMORY;
    found->code = image;
    found->bytes = section_table + (size_t)sections * section_bytes;
    *module = found;
    hip.modules++;
    return SUCCESS;
}
int hipModuleUnload(void *module)
{
    CALLED;
    free(module);
    hip.modules--;
    return SUCCESS;
}
int hipModuleGetFunction(void **function, struct module *module, const char *name)
{
    CALLED;
    if (strlen(name) >= sizeof module->kernel || !memmem(module->code, module->bytes, name, strlen(name)))
        return NOT_FOUND;
    strcpy(module->kernel, name);
    *function = module;
    return SUCCESS;
}
int hipModuleLaunchKernel(const struct module *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds, void *stream,
                          void **parameters, void **extra)
{
    struct launch l = {function->code, function->bytes, function->kernel, {grid_x, grid_y, grid_z},
                       {block_x, block_y, block_z}, lds, stream, NULL, 0};
    CALLED;
    if (parameters || !extra || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != (void *)3)
        return INVALID;
    l.kernarg = extra[1];
    l.kernarg_bytes = *(size_t *)extra[3];
    return hip.callback && hip.callback(&l) ? LAUNCH_FAILED : SUCCESS;
}

/* ---- time ---- */

int hipStreamSynchronize(void *stream)
{
    (void)stream;
    CALLED;
    return SUCCESS;
}
int hipEventCreate(void **event)
{
    CALLED;
    *event = malloc(1);
    hip.events++;
    return *event ? SUCCESS : OUT_OF_MEMORY;
}
int hipEventRecord(void *event, void *stream)
{
    (void)stream;
    CALLED;
    return event ? SUCCESS : INVALID;
}
int hipEventSynchronize(void *event)
{
    CALLED;
    return event ? SUCCESS : INVALID;
}
int hipEventElapsedTime(float *milliseconds, void *start, void *stop)
{
    CALLED;
    *milliseconds = 5.0f;
    return start && stop ? SUCCESS : INVALID;
}
int hipEventDestroy(void *event)
{
    CALLED;
    free(event);
    hip.events--;
    return SUCCESS;
}
