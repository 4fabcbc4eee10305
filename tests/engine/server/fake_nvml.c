/* NVML as a driver has it, for three GPUs of a test's making: what its functions answer is set by its variables. */
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *uuid, *name;
    int part;
} Gpu;

static Gpu gpus[] = {{"GPU-aaaa", "Fake H100", 0}, {"GPU-bbbb", "Fake H100", 0}, {"MIG-cccc", "Fake MIG 1g.10gb", 1}};
enum { COUNT = sizeof gpus / sizeof *gpus, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

int init_error, errors[COUNT], hang, inits, shutdowns;
unsigned use[COUNT] = {37, 5, 99}, memory_use[COUNT] = {12, 1, 99};
unsigned long long nvlink[COUNT][2] = {{1000, 2000}, {0, 0}, {0, 0}};

#define GPU(device) int at = (int)((Gpu *)(device) - gpus); \
    while (hang) usleep(1000); \
    if (errors[at]) return errors[at];

int nvmlInit_v2(void) { inits++; return init_error; }
int nvmlShutdown(void) { shutdowns++; return 0; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    for (int i = 0; i < COUNT; i++)
        if (!strcmp(uuid, gpus[i].uuid)) { *device = &gpus[i]; return 0; }
    return NOT_FOUND;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    GPU(device)
    strncpy(name, gpus[at].name, length);
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    GPU(device)
    if (gpus[at].part) return NOT_SUPPORTED;
    rates[0] = use[at];
    rates[1] = memory_use[at];
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    GPU(device)
    memory[0] = (unsigned long long)(gpus[at].part ? 10 : 80) << 30;
    memory[1] = memory[0] - (4ull << 30);
    memory[2] = 4ull << 30;
    return 0;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) {
    GPU(device)
    if (gpus[at].part || sensor != 0) return NOT_SUPPORTED;
    *degrees = 60 + at;
    return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    GPU(device)
    if (gpus[at].part) return NOT_SUPPORTED;
    *milliwatts = 350500;
    return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) {
    GPU(device)
    if (gpus[at].part) return NOT_SUPPORTED;
    *milliwatts = 700000;
    return 0;
}
int nvmlDeviceGetPcieThroughput(void *device, int counter, unsigned *kilobytes) {
    GPU(device)
    if (gpus[at].part) return NOT_SUPPORTED;
    *kilobytes = counter == 0 ? 250 : 4000; /* sent, received */
    return 0;
}

#ifndef OLD
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned kind;
    int result;
    union { double real; unsigned small; unsigned long long large; } value;
} Field;

int nvmlDeviceGetFieldValues(void *device, int count, Field *fields) {
    GPU(device)
    for (int i = 0; i < count; i++) {
        int received = fields[i].field == 139;
        fields[i].result = gpus[at].part || fields[i].scope != 0xffffffffu ? NOT_SUPPORTED : 0;
        fields[i].kind = 3;
        fields[i].value.large = nvlink[at][received];
    }
    return 0;
}
int nvmlDeviceIsMigDeviceHandle(void *device, unsigned *is_part) {
    GPU(device)
    *is_part = gpus[at].part;
    return 0;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **chip) {
    GPU(device)
    *chip = &gpus[0];
    return 0;
}
#endif
