/* CIFAR-10 and CIFAR-100 in their binary form: a folder of files of records, each one or two label bytes and the bytes
 * of 3 x 32 x 32 pixels. The files have no header: which flavour one is, and whether it is whole, shows in its
 * length. */
#include "byte_stream.h"
#include "formats.h"

#include <stdio.h>
#include <string.h>

enum { CHANNELS = 3, SIDE = 32, PIXELS = CHANNELS * SIDE * SIDE, MAX_LABELS = 2, MAX_FILES = 5, NAMES_BYTES = 1 << 16 };

/* A label that each record carries. */
typedef struct cifar_label {
    const char *name;
    int classes;
    const char *names_file;     /* class names, one a line; used where the folder has it */
    const char *const *builtin; /* names used otherwise; NULL: numbers */
} cifar_label;

typedef struct cifar_flavour {
    const char *name;
    const char *files[2][MAX_FILES + 1]; /* by tw_split; any of them will do */
    int label_count;
    cifar_label labels[MAX_LABELS]; /* in the order of the label bytes */
} cifar_flavour;

static const char *const cifar10_names[] = {"airplane", "automobile", "bird",  "cat",  "deer",
                                            "dog",      "frog",       "horse", "ship", "truck"};

enum { COARSE = 0 };

static const cifar_flavour flavours[] = {
    {"CIFAR-10",
     {{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
      {"test_batch.bin"}},
     1,
     {{"label", 10, "batches.meta.txt", cifar10_names}}},
    {"CIFAR-100",
     {{"train.bin"}, {"test.bin"}},
     2,
     {[COARSE] = {"coarse label", 20, "coarse_label_names.txt", NULL},
      {"fine label", 100, "fine_label_names.txt", NULL}}},
};
enum { FLAVOURS = sizeof flavours / sizeof *flavours };

/* One opening under way. */
typedef struct cifar_job {
    twi_memory *memory;
    const twi_folder *folder;
    const cifar_flavour *flavour;
    const tw_dataset_options *options;
    int label; /* which of the flavour's labels is wanted */
    tw_dataset *dataset;
    twi_stream *streams[MAX_FILES];
    int64_t counts[MAX_FILES]; /* records of each */
    int files;
} cifar_job;

static uint64_t record_size(const cifar_flavour *flavour) { return (uint64_t)flavour->label_count + PIXELS; }

/* Records in a file, from its length alone. */
static tw_status count_records(int64_t *out, twi_stream *stream, const cifar_flavour *flavour) {
    const char *path = twi_stream_path(stream);
    uint64_t size = twi_stream_file_size(stream), record = record_size(flavour);
    if (twi_stream_is_gzip(stream))
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: gzip data, expected plain %s records: unpack the file", path,
                        flavour->name);
    if (!size)
        return TWI_FAIL(TW_ERROR_FORMAT, "%s: is empty, expected %s records: get the file again", path, flavour->name);
    *out = (int64_t)(size / record);
    if (size % record == 0) return TW_OK;

    unsigned char head[4];
    size_t got;
    char shown[TWI_SHOWN_BYTES];
    for (int i = 0; i < FLAVOURS; i++)
        if (size % record_size(&flavours[i]) == 0)
            return TWI_FAIL(TW_ERROR_FORMAT,
                            "%s: %llu bytes are records of %s (%llu bytes each), by its name it should be %s (%llu "
                            "bytes each): put the right file there",
                            path, (unsigned long long)size, flavours[i].name,
                            (unsigned long long)record_size(&flavours[i]), flavour->name, (unsigned long long)record);
    TWI_TRY(twi_stream_read(stream, head, sizeof head, &got));
    return TWI_FAIL(TW_ERROR_FORMAT,
                    "%s: %llu bytes starting with %s are not a whole number of %s records of %llu bytes (%lld and %llu "
                    "bytes over): the file is truncated or something else",
                    path, (unsigned long long)size, twi_show_bytes(shown, head, got), flavour->name,
                    (unsigned long long)record, (long long)*out, (unsigned long long)(size % record));
}

/* Opens what files of the split there are and counts their records. */
static tw_status open_files(cifar_job *job, tw_split split) {
    for (const char *const *name = job->flavour->files[split]; *name; name++) {
        if (!twi_folder_has(job->folder, *name)) continue;
        char *path;
        TWI_TRY(twi_path_join(job->memory, &path, job->folder->path, *name));
        tw_status status = twi_stream_open(&job->streams[job->files], job->memory, path);
        twi_put(job->memory, path);
        if (status) return status;
        TWI_TRY(count_records(&job->counts[job->files], job->streams[job->files], job->flavour));
        job->dataset->count += job->counts[job->files++];
    }
    return TW_OK;
}

static tw_status read_exactly(twi_stream *stream, void *destination, size_t size) {
    size_t got;
    TWI_TRY(twi_stream_read(stream, destination, size, &got));
    if (got < size) return TWI_FAIL(TW_ERROR_FILE, "%s: became shorter while it was read", twi_stream_path(stream));
    return TW_OK;
}

/* Reads one file into the samples from `first` on. Labels that are not wanted must be in range too: one that is not
 * shows that the file is something else. */
static tw_status read_records(cifar_job *job, int file, int64_t first) {
    const cifar_flavour *flavour = job->flavour;
    twi_stream *stream = job->streams[file];
    unsigned char labels[MAX_LABELS];
    for (int64_t i = 0; i < job->counts[file]; i++) {
        TWI_TRY(read_exactly(stream, labels, (size_t)flavour->label_count));
        TWI_TRY(read_exactly(stream, (unsigned char *)job->dataset->images + (size_t)(first + i) * PIXELS, PIXELS));
        for (int k = 0; k < flavour->label_count; k++)
            if (labels[k] >= flavour->labels[k].classes)
                return TWI_FAIL(
                    TW_ERROR_LABEL,
                    "%s: record %lld has %s %d, outside 0 .. %d of %s: the file is damaged or something else",
                    twi_stream_path(stream), (long long)i, flavour->labels[k].name, labels[k],
                    flavour->labels[k].classes - 1, flavour->name);
        job->dataset->labels[first + i] = labels[job->label];
    }
    return TW_OK;
}

/* Cuts a text into its lines that are not blank. Returns their number, of which at most `most` are stored. */
static int cut_lines(char *text, const char **lines, int most) {
    int count = 0;
    for (char *line = text; *line;) {
        size_t length = strcspn(line, "\r\n");
        char *next = line + length + (line[length] != 0);
        while (length && (line[length - 1] == ' ' || line[length - 1] == '\t')) length--;
        line[length] = 0;
        if (length && count++ < most) lines[count - 1] = line;
        line = next;
    }
    return count;
}

static tw_status read_names(char *text, const char **names, twi_stream *stream, const cifar_label *label) {
    size_t got;
    TWI_TRY(twi_stream_read(stream, text, NAMES_BYTES, &got));
    text[got] = 0;
    int count = cut_lines(text, names, label->classes);
    if (got == NAMES_BYTES || count != label->classes)
        return TWI_FAIL(TW_ERROR_FORMAT,
                        "%s: %d lines, expected the names of %d classes, one a line: correct or remove the file",
                        twi_stream_path(stream), count, label->classes);
    return TW_OK;
}

/* Class names from the folder where it has them. */
static tw_status set_classes_from_file(cifar_job *job, const cifar_label *label) {
    char *path = NULL, *text = NULL;
    const char **names = NULL;
    twi_stream *stream = NULL;
    tw_status status;
    TWI_TRY_GOTO(twi_path_join(job->memory, &path, job->folder->path, label->names_file), done);
    TWI_TRY_GOTO(twi_stream_open(&stream, job->memory, path), done);
    TWI_TRY_GOTO(twi_get(job->memory, &text, NAMES_BYTES + 1, 1, "class names"), done);
    TWI_TRY_GOTO(twi_get(job->memory, &names, (size_t)label->classes, sizeof *names, "class names"), done);
    TWI_TRY_GOTO(read_names(text, names, stream, label), done);
    TWI_TRY_GOTO(twi_dataset_set_classes(job->dataset, job->options, label->classes, names), done);
done:
    twi_stream_close(stream);
    twi_put(job->memory, names);
    twi_put(job->memory, text);
    twi_put(job->memory, path);
    return status;
}

static tw_status read_files(cifar_job *job) {
    tw_dataset *dataset = job->dataset;
    const cifar_label *label = &job->flavour->labels[job->label];
    int64_t first = 0;
    size_t size;
    dataset->dtype = TW_U8;
    dataset->channels = CHANNELS;
    dataset->height = dataset->width = SIDE;
    TWI_TRY(twi_mul_size(&size, (size_t)dataset->count, PIXELS, "images"));
    TWI_TRY(twi_get(job->memory, &dataset->images, size, 1, "images of a data set"));
    TWI_TRY(twi_get(job->memory, &dataset->labels, (size_t)dataset->count, sizeof *dataset->labels,
                    "labels of a data set"));
    if (twi_folder_has(job->folder, label->names_file))
        TWI_TRY(set_classes_from_file(job, label));
    else
        TWI_TRY(twi_dataset_set_classes(dataset, job->options, label->classes, label->builtin));
    for (int i = 0; i < job->files; first += job->counts[i++]) {
        TWI_TRY(read_records(job, i, first));
        TWI_TRY(twi_dataset_check_labels(dataset, first, job->counts[i], twi_stream_path(job->streams[i])));
    }
    return TW_OK;
}

static tw_status open_flavour(tw_dataset **out, cifar_job *job, tw_context *context, tw_split split) {
    tw_status status = twi_dataset_new(&job->dataset, context);
    if (!status) status = open_files(job, split);
    if (!status && job->files) status = read_files(job);
    if (!status && job->files) {
        *out = job->dataset;
        job->dataset = NULL;
    }
    tw_dataset_destroy(job->dataset);
    for (int i = 0; i < MAX_FILES; i++) twi_stream_close(job->streams[i]);
    return status;
}

tw_status twi_cifar_open(tw_dataset **out, tw_context *context, const twi_folder *folder, tw_split split,
                         const tw_dataset_options *options) {
    for (int i = 0; i < FLAVOURS && !*out; i++) {
        const cifar_flavour *flavour = &flavours[i];
        cifar_job job = {
            .memory = context->memory,
            .folder = folder,
            .flavour = flavour,
            .options = options,
            .label = options->coarse_labels ? COARSE : flavour->label_count - 1,
        };
        TWI_TRY(open_flavour(out, &job, context, split));
    }
    return TW_OK;
}
