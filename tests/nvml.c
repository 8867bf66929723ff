/* A stand-in for NVIDIA's management library: it replays the file `gpus` next to itself, a line a GPU:
   UUID USE MILLIWATTS LIMIT MEMORY TOTAL TEMPERATURE CLOCK REASONS [PID...]
   A value of "-" is one that the GPU does not know; a line "lost" is a GPU that fell off its bus. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, TOO_SMALL = 7, LOST = 15, FIELDS = 9, MOST = 64 };
static struct gpu { char text[1024]; char *cells[FIELDS + 32]; int count; } gpus[MOST];
static int known;

int nvmlInit_v2(void)
{
    Dl_info self;
    char path[4096];
    dladdr((void *)nvmlInit_v2, &self);
    snprintf(path, sizeof path, "%s", self.dli_fname);
    strcpy(strrchr(path, '/') + 1, "gpus");
    FILE *file = fopen(path, "r");
    for (known = 0; file && known < MOST && fgets(gpus[known].text, sizeof gpus[known].text, file); known++) {
        gpus[known].count = 0;
        for (char *cell = strtok(gpus[known].text, " \n"); cell; cell = strtok(NULL, " \n"))
            gpus[known].cells[gpus[known].count++] = cell;
    }
    return file ? fclose(file) : 9; /* driver not loaded */
}

static int value(struct gpu *gpu, int field, unsigned long long *found)
{
    if (gpu->count <= field || strcmp(gpu->cells[field], "-") == 0)
        return NOT_SUPPORTED;
    *found = strtoull(gpu->cells[field], NULL, 0);
    return SUCCESS;
}

static int small(struct gpu *gpu, int field, unsigned *found)
{
    unsigned long long wide = 0;
    int wrong = value(gpu, field, &wide);
    *found = wide;
    return wrong;
}

int nvmlDeviceGetCount_v2(unsigned *count) { *count = known; return known ? SUCCESS : 1; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    nvmlInit_v2(); /* what the file holds by now */
    *device = &gpus[index];
    return strcmp(gpus[index].cells[0], "lost") ? SUCCESS : LOST;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned size)
{
    snprintf(text, size, "%s", ((struct gpu *)device)->cells[0]);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) { rates[1] = 0; return small(device, 1, rates); }
int nvmlDeviceGetPowerUsage(void *device, unsigned *found) { return small(device, 2, found); }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *found) { return small(device, 3, found); }
int nvmlDeviceGetTemperature(void *device, unsigned kind, unsigned *found) { return kind ? 2 : small(device, 6, found); }
int nvmlDeviceGetClockInfo(void *device, unsigned kind, unsigned *found) { return kind != 1 ? 2 : small(device, 7, found); }

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory)
{
    int wrong = value(device, 5, &memory[0]);
    return wrong ? wrong : value(device, 4, &memory[2]);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *found) { return value(device, 8, found); }

struct process { unsigned pid; unsigned long long memory; };

int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, struct process *found)
{
    struct gpu *gpu = device;
    unsigned there = gpu->count > FIELDS ? gpu->count - FIELDS : 0;
    if (there > *count)
        return TOO_SMALL;
    for (*count = 0; *count < there; ++*count)
        found[*count].pid = atoi(gpu->cells[FIELDS + *count]);
    return SUCCESS;
}
