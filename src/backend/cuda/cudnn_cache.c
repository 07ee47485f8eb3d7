/* Choices that are remembered from one process to the next, in one small text file for a device and its libraries:
 *
 *   talweg cudnn choices 1; NVIDIA H200, 9.0, 132 processors; cuDNN 91900, CUDA 13000; workspace 268435456
 *   <problem><tab><engine> <knob>=<value> ...
 *   sum <64-bit FNV-1a of all before it, in hex>
 */
#define _POSIX_C_SOURCE 200809L
#include "cudnn.h"

#ifdef TWI_HAVE_CUDNN

#include "base/atomic_file.h"
#include "base/philox.h"
#include "base/text.h"
#include "cudnn_plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const long file_most = 16L << 20; /* bytes: no file of ours is larger */

/* ---- in memory ---- */

static twi_dnn_entry *find(const twi_dnn_cache *cache, const char *key) {
    for (twi_dnn_entry *e = cache->entry; e < cache->entry + cache->count; e++)
        if (strcmp(e->key, key) == 0) return e;
    return NULL;
}

const twi_dnn_choice *twi_dnn_cache_find(const twi_cuda_dnn *dnn, const char *key) {
    const twi_dnn_entry *e = find(&dnn->cache, key);
    return e ? &e->choice : NULL;
}

tw_status twi_dnn_cache_put(twi_cuda_dnn *dnn, const char *key, const twi_dnn_choice *choice) {
    twi_dnn_cache *cache = &dnn->cache;
    twi_dnn_entry *e = find(cache, key);
    if (!e) {
        if (cache->count == cache->capacity) {
            const int capacity = cache->capacity ? 2 * cache->capacity : 32;
            TWI_TRY(twi_grow(dnn->memory, &cache->entry, (size_t)capacity, sizeof *e, "cuDNN choices"));
            cache->capacity = capacity;
        }
        e = &cache->entry[cache->count];
        TWI_TRY(twi_get_text(dnn->memory, &e->key, key));
        cache->count++;
    }
    e->choice = *choice;
    cache->changed = true;
    return TW_OK;
}

/* ---- the file ---- */

/* All of it as a text; *out NULL where there is none, or none that could be ours. */
static tw_status read_file(twi_cuda_dnn *dnn, char **out) {
    *out = NULL;
    FILE *file = fopen(dnn->cache.path, "rb");
    if (!file) return TW_OK;
    long bytes = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
    tw_status status = TW_OK;
    if (bytes >= 0 && bytes <= file_most && !fseek(file, 0, SEEK_SET)) {
        status = twi_get(dnn->memory, out, (size_t)bytes + 1, 1, "cuDNN choices");
        if (!status && fread(*out, 1, (size_t)bytes, file) != (size_t)bytes) **out = 0;
    }
    fclose(file);
    return status;
}

/* Cuts the last line off and compares it with the sum of what is left. */
static bool is_whole(char *text) {
    char *last = strstr(text, "\nsum ");
    if (!last) return false;
    char *end;
    const unsigned long long sum = strtoull(last + 5, &end, 16);
    last[1] = 0;
    return strcmp(end, "\n") == 0 && twi_hash_text(text) == sum;
}

static bool read_number(char **at, int64_t *out) {
    char *start = *at;
    *out = strtoll(start, at, 10);
    return *at != start;
}

static bool parse_choice(twi_dnn_choice *choice, char *at) {
    *choice = (twi_dnn_choice){0};
    if (!read_number(&at, &choice->engine) || choice->engine < 0) return false;
    while (*at == ' ') {
        if (choice->knob_count == TWI_DNN_KNOBS) return false;
        const int k = choice->knob_count++;
        if (!read_number(&at, &choice->knob[k].type) || *at++ != '=' || !read_number(&at, &choice->knob[k].value))
            return false;
    }
    return *at == 0;
}

/* Adds what a file knows to what is known already, which counts more. */
static tw_status merge(twi_cuda_dnn *dnn, char *text) {
    if (!is_whole(text)) return TW_OK;
    char *rest, *line = strtok_r(text, "\n", &rest);
    if (!line || strcmp(line, dnn->cache.header) != 0) return TW_OK;
    while ((line = strtok_r(NULL, "\n", &rest))) {
        char *tab = strchr(line, '\t');
        twi_dnn_choice choice;
        if (!tab || !parse_choice(&choice, tab + 1)) continue;
        *tab = 0;
        if (!find(&dnn->cache, line)) TWI_TRY(twi_dnn_cache_put(dnn, line, &choice));
    }
    return TW_OK;
}

static tw_status load(twi_cuda_dnn *dnn) {
    char *text;
    TWI_TRY(read_file(dnn, &text));
    if (!text) return TW_OK;
    tw_status status = merge(dnn, text);
    twi_put(dnn->memory, text);
    return status;
}

static void print_all(const twi_dnn_cache *cache, twi_text *text) {
    twi_text_add(text, "%s\n", cache->header);
    for (const twi_dnn_entry *e = cache->entry; e < cache->entry + cache->count; e++) {
        twi_text_add(text, "%s\t%lld", e->key, (long long)e->choice.engine);
        for (int k = 0; k < e->choice.knob_count; k++)
            twi_text_add(text, " %lld=%lld", (long long)e->choice.knob[k].type, (long long)e->choice.knob[k].value);
        twi_text_add(text, "\n");
    }
}

static tw_status save(twi_cuda_dnn *dnn) {
    TWI_TRY(load(dnn)); /* what another process has found meanwhile */
    twi_text text;
    twi_text_init(&text, dnn->memory);
    print_all(&dnn->cache, &text);
    char *whole;
    TWI_TRY(twi_text_take(&text, &whole));
    twi_atomic_file file;
    tw_status status = twi_atomic_file_open(&file, dnn->memory, dnn->cache.path);
    if (!status) {
        twi_atomic_file_print(&file, "%ssum %llx\n", whole, (unsigned long long)twi_hash_text(whole));
        status = twi_atomic_file_commit(&file);
    }
    twi_put(dnn->memory, whole);
    return status;
}

/* ---- opening and closing ---- */

static tw_status name_file(twi_cuda_dnn *dnn, const char *folder) {
    const twi_cuda_device *device = dnn->device;
    int runtime = 0;
    (void)cudaRuntimeGetVersion(&runtime);
    twi_text text;
    twi_text_init(&text, dnn->memory);
    twi_text_add(&text, "talweg cudnn choices 1; %s%s, %d.%d, %d processors; cuDNN %zu, CUDA %d; workspace %zu%s",
                 dnn->properties ? "described " : "", device->name, device->capability / 10, device->capability % 10,
                 device->processors, cudnnGetVersion(), runtime, dnn->workspace_limit, dnn->trial ? ", timed" : "");
    TWI_TRY(twi_text_take(&text, &dnn->cache.header));
    twi_text_init(&text, dnn->memory);
    twi_text_add(&text, "%s/cudnn-%016llx.txt", folder, (unsigned long long)twi_hash_text(dnn->cache.header));
    return twi_text_take(&text, &dnn->cache.path);
}

tw_status twi_dnn_cache_open(twi_cuda_dnn *dnn, const char *folder) {
    if (!folder || !*folder) return TW_OK;
    TWI_TRY(name_file(dnn, folder));
    if (mkdir(folder, 0777) && errno != EEXIST)
        twi_log_line(&dnn->device->context->log, TW_LOG_WARNING, "cuDNN choices: cannot make %s: %s", folder,
                     strerror(errno));
    TWI_TRY(load(dnn));
    dnn->cache.changed = false;
    return TW_OK;
}

void twi_dnn_cache_close(twi_cuda_dnn *dnn) {
    twi_dnn_cache *cache = &dnn->cache;
    if (cache->changed && cache->path && save(dnn))
        twi_log_line(&dnn->device->context->log, TW_LOG_WARNING, "cuDNN choices are not kept: %s", tw_last_error());
    for (int i = 0; i < cache->count; i++) twi_put(dnn->memory, cache->entry[i].key);
    twi_put(dnn->memory, cache->entry);
    twi_put(dnn->memory, cache->header);
    twi_put(dnn->memory, cache->path);
}

#endif
