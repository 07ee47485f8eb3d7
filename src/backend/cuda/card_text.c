/* A card's description for cuDNN, from its figures and what its generation has in common. */
#include "card_text.h"

#include <stdio.h>

/* Per multiprocessor: threads, blocks; per block, asked for: bytes of shared memory. */
static const struct generation {
    int capability, threads, blocks, shared;
} generations[] = {
    {75, 1024, 16, 65536},  {80, 2048, 32, 166912}, {86, 1536, 16, 101376},  {87, 1536, 16, 166912},
    {89, 1536, 24, 101376}, {90, 2048, 32, 232448}, {100, 2048, 32, 232448}, {120, 1536, 24, 101376},
};
enum { GENERATIONS = sizeof generations / sizeof *generations };

/* A name as it may stand in the text. */
static void plain_name(char out[64], const char *name) {
    snprintf(out, 64, "%s", name);
    for (char *c = out; *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ') *c = ' ';
}

void twi_cuda_describe_card(const tw_card *card, char json[TWI_CARD_TEXT]) {
    const struct generation *g = generations;
    char name[64];
    plain_name(name, card->name);
    for (int i = 0; i < GENERATIONS; i++)
        if (generations[i].capability <= card->capability) g = &generations[i];
    snprintf(json, TWI_CARD_TEXT,
             "{\"deviceVer\":%d,\"multiProcessorCount\":%d,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
             "\"maxSharedMemoryPerBlockOptin\":%d,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
             "\"maxCtasPerSM\":%d,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":%d,\"regsPerBlock\":65536,"
             "\"totalGlobalMem\":%llu,\"smClockRateKHz\":%d,\"l2CacheSize\":%llu,\"maxBlockSize\":[1024,1024,64],"
             "\"memClockRateKHz\":2000000,\"maxGridSize\":[2147483647,65535,65535],\"supportCoopLaunch\":1,"
             "\"pciDeviceId\":0,\"isTccDriver\":0,\"cudaDeviceId\":0,\"driverVer\":13000,\"deviceName\":\"%s\"}",
             card->capability * 10, card->processors, g->shared, g->blocks, g->threads,
             (unsigned long long)card->memory_bytes, card->clock_mhz * 1000, (unsigned long long)card->l2_bytes, name);
}
