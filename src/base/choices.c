/* Choices by key, in memory and in their file. The file is written whole, with what other processes put there
 * meanwhile. */
#define _POSIX_C_SOURCE 200809L
#include "choices.h"
#include "atomic_file.h"
#include "philox.h"
#include "text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const long file_most = 16L << 20; /* bytes: no file of ours is larger */

/* ---- in memory ---- */

static twi_choices_entry *find(const twi_choices *choices, const char *key) {
    for (twi_choices_entry *e = choices->entry; e < choices->entry + choices->count; e++)
        if (strcmp(e->key, key) == 0) return e;
    return NULL;
}

const char *twi_choices_find(const twi_choices *choices, const char *key) {
    const twi_choices_entry *e = find(choices, key);
    return e ? e->choice : NULL;
}

static bool is_full(const twi_choices *choices) { return choices->count == TWI_CHOICES_MOST; }

static tw_status make_place(twi_choices *choices, twi_choices_entry **out) {
    if (is_full(choices)) {
        *out = &choices->entry[choices->oldest];
        choices->oldest = (choices->oldest + 1) % TWI_CHOICES_MOST;
        twi_put(choices->memory, (*out)->key);
        twi_put(choices->memory, (*out)->choice);
        return TW_OK;
    }
    if (choices->count == choices->capacity) {
        const int capacity = choices->capacity ? 2 * choices->capacity : 32;
        TWI_TRY(twi_grow(choices->memory, &choices->entry, (size_t)capacity, sizeof *choices->entry, "choices"));
        choices->capacity = capacity;
    }
    *out = &choices->entry[choices->count++];
    return TW_OK;
}

static tw_status add(twi_choices *choices, const char *key, char *choice) {
    char *copy;
    twi_choices_entry *e;
    TWI_TRY(twi_get_text(choices->memory, &copy, key));
    tw_status status = make_place(choices, &e);
    if (status) {
        twi_put(choices->memory, copy);
        return status;
    }
    *e = (twi_choices_entry){copy, choice};
    return TW_OK;
}

tw_status twi_choices_put(twi_choices *choices, const char *key, const char *choice) {
    char *copy;
    TWI_TRY(twi_get_text(choices->memory, &copy, choice));
    twi_choices_entry *e = find(choices, key);
    if (e) {
        twi_put(choices->memory, e->choice);
        e->choice = copy;
    } else {
        tw_status status = add(choices, key, copy);
        if (status) {
            twi_put(choices->memory, copy);
            return status;
        }
    }
    choices->changed = true;
    return TW_OK;
}

/* ---- the file ---- */

static void ignore(const twi_choices *choices, const char *why) {
    twi_log_line(choices->log, TW_LOG_INFO, "choices in %s are not read: %s", choices->path, why);
}

/* All of it as a text; *out NULL where there is none, or none that could be ours. */
static tw_status read_file(const twi_choices *choices, char **out) {
    *out = NULL;
    FILE *file = fopen(choices->path, "rb");
    if (!file) {
        if (errno != ENOENT) ignore(choices, strerror(errno));
        return TW_OK;
    }
    long bytes = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
    tw_status status = TW_OK;
    if (bytes >= 0 && bytes <= file_most && !fseek(file, 0, SEEK_SET)) {
        status = twi_get(choices->memory, out, (size_t)bytes + 1, 1, "choices");
        if (!status && fread(*out, 1, (size_t)bytes, file) != (size_t)bytes) **out = 0;
    } else {
        ignore(choices, "it is too large, or no file");
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

/* Adds what a file knows to what is known already, which counts more. */
static tw_status merge(twi_choices *choices, char *text) {
    if (!is_whole(text)) {
        ignore(choices, "it is damaged");
        return TW_OK;
    }
    char *rest, *line = strtok_r(text, "\n", &rest);
    if (!line || strcmp(line, choices->header) != 0) {
        ignore(choices, "it is of another machine or version");
        return TW_OK;
    }
    while ((line = strtok_r(NULL, "\n", &rest))) {
        char *tab = strchr(line, '\t');
        if (!tab) continue;
        *tab = 0;
        if (!is_full(choices) && !find(choices, line)) TWI_TRY(twi_choices_put(choices, line, tab + 1));
    }
    return TW_OK;
}

static tw_status load(twi_choices *choices) {
    char *text;
    TWI_TRY(read_file(choices, &text));
    if (!text) return TW_OK;
    tw_status status = merge(choices, text);
    twi_put(choices->memory, text);
    return status;
}

static tw_status save(twi_choices *choices) {
    TWI_TRY(load(choices)); /* what another process has found meanwhile */
    twi_text text;
    twi_text_init(&text, choices->memory);
    twi_text_add(&text, "%s\n", choices->header);
    for (const twi_choices_entry *e = choices->entry; e < choices->entry + choices->count; e++)
        twi_text_add(&text, "%s\t%s\n", e->key, e->choice);
    char *whole;
    TWI_TRY(twi_text_take(&text, &whole));
    twi_atomic_file file;
    tw_status status = twi_atomic_file_open(&file, choices->memory, choices->path);
    if (!status) {
        twi_atomic_file_print(&file, "%ssum %llx\n", whole, (unsigned long long)twi_hash_text(whole));
        status = twi_atomic_file_commit(&file);
    }
    twi_put(choices->memory, whole);
    return status;
}

/* ---- opening and closing ---- */

tw_status twi_choices_open(twi_choices *choices, twi_memory *memory, const twi_log *log, const char *folder,
                           const char *name, const char *header) {
    *choices = (twi_choices){.memory = memory, .log = log};
    if (!folder) folder = getenv("TALWEG_CACHE_DIR");
    if (!folder || !*folder) return TW_OK;
    TWI_TRY(twi_get_text(memory, &choices->header, header));
    twi_text text;
    twi_text_init(&text, memory);
    twi_text_add(&text, "%s/%s-%016llx.txt", folder, name, (unsigned long long)twi_hash_text(header));
    TWI_TRY(twi_text_take(&text, &choices->path));
    if (mkdir(folder, 0777) && errno != EEXIST)
        twi_log_line(log, TW_LOG_WARNING, "choices: cannot make %s: %s", folder, strerror(errno));
    TWI_TRY(load(choices));
    choices->changed = false;
    return TW_OK;
}

void twi_choices_close(twi_choices *choices) {
    if (!choices->memory) return;
    if (choices->changed && choices->path && save(choices))
        twi_log_line(choices->log, TW_LOG_WARNING, "choices are not kept: %s", tw_last_error());
    for (int i = 0; i < choices->count; i++) {
        twi_put(choices->memory, choices->entry[i].key);
        twi_put(choices->memory, choices->entry[i].choice);
    }
    twi_put(choices->memory, choices->entry);
    twi_put(choices->memory, choices->header);
    twi_put(choices->memory, choices->path);
}
