/* A C program that asks for device memory: `ask driver LIBRARY` with cuMemAlloc, `ask runtime LIBRARY` with cudaMalloc.
 * It takes 64 MiB, prints a JSON line, and for each line {"mib": N} on its stdin asks for N MiB and prints the result's number.
 * What it got, it keeps until stdin closes. The functions are looked up in LIBRARY, so no header of CUDA is needed. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB 1048576ul

typedef int (*allocate)(void **address, size_t size);

static void *library;

static void *function(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    return found;
}

static void check(const char *name, int result)
{
    if (result) {
        fprintf(stderr, "%s: error %d\n", name, result);
        exit(2);
    }
}

/* The driver's call needs a context: the primary one of device 0. The runtime makes that context current by itself. */
static allocate driver(void)
{
    int device;
    void *context;
    check("cuInit", ((int (*)(unsigned))function("cuInit"))(0));
    check("cuDeviceGet", ((int (*)(int *, int))function("cuDeviceGet"))(&device, 0));
    check("cuDevicePrimaryCtxRetain", ((int (*)(void **, int))function("cuDevicePrimaryCtxRetain"))(&context, device));
    check("cuCtxSetCurrent", ((int (*)(void *))function("cuCtxSetCurrent"))(context));
    return (allocate)function("cuMemAlloc_v2");
}

int main(int argc, char **argv)
{
    if (argc != 3 || (strcmp(argv[1], "driver") && strcmp(argv[1], "runtime"))) {
        fprintf(stderr, "usage: ask driver|runtime LIBRARY\n");
        return 2;
    }
    library = dlopen(argv[2], RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    allocate ask = strcmp(argv[1], "driver") ? (allocate)function("cudaMalloc") : driver();
    void *address;
    check("the first 64 MiB", ask(&address, 64 * MIB));
    printf("{\"ready\": true}\n");
    fflush(stdout);
    char line[128];
    unsigned long mib;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "{\"mib\": %lu", &mib) != 1)
            return 2;
        printf("{\"result\": %d}\n", ask(&address, mib * MIB));
        fflush(stdout);
    }
    return 0;
}
