/* The few functions of the HIP runtime that the shim uses, found at run time: building it needs no ROCm.

   The types are what the public HIP API passes across its C boundary: handles are pointers, errors and enumerations ints. */
#ifndef HIP_RUNTIME_H
#define HIP_RUNTIME_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIP_SUCCESS = 0, HIP_TO_DEVICE = 1, HIP_TO_HOST = 2 };
enum { PROPERTIES_BYTES = 8192, DEVICE_NAME_BYTES = 256, HIP_REASONS_BYTES = 1024 };

/* The keys of hipModuleLaunchKernel's list of extras. */
#define LAUNCH_BUFFER ((void *)1)
#define LAUNCH_BUFFER_SIZE ((void *)2)
#define LAUNCH_END ((void *)3)

#define HIP_FUNCTIONS(X)                                                                                               \
    X(init, hipInit, (unsigned))                                                                                       \
    X(get_device_count, hipGetDeviceCount, (int *))                                                                    \
    X(get_device, hipGetDevice, (int *))                                                                               \
    X(module_load_data, hipModuleLoadData, (void **, const void *))                                                    \
    X(module_unload, hipModuleUnload, (void *))                                                                        \
    X(module_get_function, hipModuleGetFunction, (void **, void *, const char *))                                      \
    X(module_launch_kernel, hipModuleLaunchKernel,                                                                     \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))        \
    X(malloc_device, hipMalloc, (void **, size_t))                                                                     \
    X(free_device, hipFree, (void *))                                                                                  \
    X(copy, hipMemcpy, (void *, const void *, size_t, int))                                                            \
    X(stream_synchronize, hipStreamSynchronize, (void *))                                                              \
    X(event_create, hipEventCreate, (void **))                                                                         \
    X(event_record, hipEventRecord, (void *, void *))                                                                  \
    X(event_synchronize, hipEventSynchronize, (void *))                                                                \
    X(event_elapsed, hipEventElapsedTime, (float *, void *, void *))                                                   \
    X(event_destroy, hipEventDestroy, (void *))

#define HIP_MEMBER(name, symbol, arguments) int(*name) arguments;
static struct {
    void *library;
    HIP_FUNCTIONS(HIP_MEMBER)
    int (*get_properties)(void *, int);
    const char *(*error_string)(int);
} hip;
#undef HIP_MEMBER

/* Opens a library, or adds the loader's reason to text. */
static void *hip_try(const char *name, char *text, size_t size)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    size_t used = strlen(text);

    if (!library) {
        const char *why = dlerror();
        snprintf(text + used, size - used, "%s%s", used ? "; " : "", why ? why : name);
    }
    return library;
}

/* Opens the runtime: what MXGEMM_LIBAMDHIP64 names, else one that is loaded already (PyTorch brings its own), else the
   system's. Returns NULL, or what is in the way, written to text. */
static const char *hip_open(char *text, size_t size)
{
    static const char *const names[] = {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"};
    enum { NAMES = sizeof names / sizeof *names };
    const char *named = getenv("MXGEMM_LIBAMDHIP64");
    char reasons[HIP_REASONS_BYTES] = "";
    void *library = NULL;

    if (hip.library)
        return NULL;
    if (named && *named) {
        library = hip_try(named, reasons, sizeof reasons);
    } else {
        for (int i = 0; i < NAMES && !library; i++)
            library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
        for (int i = 0; i < NAMES && !library; i++)
            library = hip_try(names[i], reasons, sizeof reasons);
    }
    if (!library) {
        snprintf(text, size, "the HIP runtime could not be opened (%s); install ROCm, or name it in MXGEMM_LIBAMDHIP64",
                 reasons);
        return text;
    }
#define HIP_LOAD(name, symbol, arguments)                                                                              \
    *(void **)&hip.name = dlsym(library, #symbol);                                                                     \
    if (!hip.name) {                                                                                                   \
        snprintf(text, size, "the HIP runtime has no %s", #symbol);                                                    \
        dlclose(library);                                                                                              \
        return text;                                                                                                   \
    }
    HIP_FUNCTIONS(HIP_LOAD)
#undef HIP_LOAD
    *(void **)&hip.error_string = dlsym(library, "hipGetErrorString");
    /* ROCm 6 renamed the call when the structure changed. Either layout will do, see device_arch. */
    *(void **)&hip.get_properties = dlsym(library, "hipGetDevicePropertiesR0600");
    if (!hip.get_properties)
        *(void **)&hip.get_properties = dlsym(library, "hipGetDeviceProperties");
    if (!hip.get_properties || !hip.error_string) {
        snprintf(text, size, "the HIP runtime has no %s",
                 hip.error_string ? "hipGetDeviceProperties" : "hipGetErrorString");
        dlclose(library);
        return text;
    }
    hip.library = library;
    return NULL;
}

/* Writes the architecture of a device ("gfx950", without ":sramecc+" and the like); returns HIP's error, and an empty text
   where there is no such name. gcnArchName is the first "gfx" after the device's name, in every version of the structure. */
static int device_arch(int device, char *arch, size_t size)
{
    static _Thread_local _Alignas(16) char properties[PROPERTIES_BYTES];
    int error;

    memset(properties, 0, sizeof properties);
    arch[0] = '\0';
    error = hip.get_properties(properties, device);
    if (error)
        return error;
    for (size_t at = DEVICE_NAME_BYTES; at + 16 < sizeof properties; at++) {
        if (memcmp(properties + at, "gfx", 3) == 0) {
            size_t length = strcspn(properties + at, ":");
            snprintf(arch, size, "%.*s", (int)length, properties + at);
            break;
        }
    }
    return HIP_SUCCESS;
}

#endif
