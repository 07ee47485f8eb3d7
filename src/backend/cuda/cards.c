/* The cards that can be planned for, and what their generations have in common. */
#include "cards.h"

#include <stdio.h>
#include <string.h>

const twi_cuda_card twi_cuda_cards[] = {
    {"t4", "NVIDIA T4", 75, 40, 16, 4, 1590},
    {"a100-40", "NVIDIA A100 40GB", 80, 108, 40, 40, 1410},
    {"a100", "NVIDIA A100 80GB", 80, 108, 80, 40, 1410},
    {"l4", "NVIDIA L4", 89, 58, 24, 48, 2040},
    {"l40s", "NVIDIA L40S", 89, 142, 48, 96, 2520},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, 24, 72, 2520},
    {"h100", "NVIDIA H100", 90, 132, 80, 50, 1980},
    {"h200", "NVIDIA H200", 90, 132, 141, 60, 1980},
    {"b200", "NVIDIA B200", 100, 148, 180, 126, 1965},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 120, 170, 32, 96, 2407},
    {NULL, NULL, 0, 0, 0, 0, 0},
};

const twi_cuda_card *twi_cuda_find_card(const char *key) {
    for (const twi_cuda_card *card = twi_cuda_cards; card->key; card++)
        if (strcmp(card->key, key) == 0) return card;
    return NULL;
}

/* Per multiprocessor: threads, blocks; per block, asked for: bytes of shared memory. */
static const struct generation {
    int capability, threads, blocks, shared;
} generations[] = {
    {75, 1024, 16, 65536},  {80, 2048, 32, 166912},  {89, 1536, 24, 101376},
    {90, 2048, 32, 232448}, {100, 2048, 32, 232448}, {120, 1536, 24, 101376},
};

void twi_cuda_describe_card(const twi_cuda_card *card, char json[TWI_CARD_TEXT]) {
    const struct generation *g = generations;
    while (g->capability != card->capability) g++; /* every card's is there */
    snprintf(json, TWI_CARD_TEXT,
             "{\"deviceVer\":%d,\"multiProcessorCount\":%d,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
             "\"maxSharedMemoryPerBlockOptin\":%d,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
             "\"maxCtasPerSM\":%d,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":%d,\"regsPerBlock\":65536,"
             "\"totalGlobalMem\":%llu,\"smClockRateKHz\":%d,\"l2CacheSize\":%d,\"maxBlockSize\":[1024,1024,64],"
             "\"memClockRateKHz\":2000000,\"maxGridSize\":[2147483647,65535,65535],\"supportCoopLaunch\":1,"
             "\"pciDeviceId\":0,\"isTccDriver\":0,\"cudaDeviceId\":0,\"driverVer\":13000,\"deviceName\":\"%s\"}",
             card->capability * 10, card->processors, g->shared, g->blocks, g->threads,
             (unsigned long long)card->memory_gib << 30, card->clock_mhz * 1000, card->l2_mib << 20, card->name);
}
