/* Talweg: data sets and loaders. A data set is decoded samples in memory (u8 or f32, N,C,H,W, one label each); a loader
 * turns it into shuffled, augmented, normalised f32 batches. */
#ifndef TALWEG_DATA_H
#define TALWEG_DATA_H

#include <talweg/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_dataset tw_dataset;

typedef enum tw_split { TW_TRAIN = 0, TW_TEST = 1 } tw_split;

/** Largest number of classes of a data set. */
#define TW_MAX_CLASSES 1048576

typedef struct tw_dataset_options {
    size_t size;
    const char *const *class_names; /**< `classes` names; NULL: the format's own, else "0", "1", ... */
    int classes;                    /**< number of classes; 0: the format's own, else largest label + 1 */
    bool coarse_labels;             /**< CIFAR-100: use the 20 coarse labels instead of the 100 fine ones */
} tw_dataset_options;
#define TW_DATASET_OPTIONS_INIT {sizeof(tw_dataset_options), NULL, 0, false}

/** Opens the data set in folder `path`; the format is told by content, not by name:
 *  IDX pairs (plain or gzip; names holding "train" or "t10k"/"test", "images" and "labels"),
 *  CIFAR-10 binary (data_batch_*.bin, test_batch.bin), CIFAR-100 binary (train.bin, test.bin).
 *  Errors: FILE (cannot be read, nothing known there: lists what was found), FORMAT (names file, field, value found and
 *  expected), LABEL (file, record, value, classes). No memory is taken on the word of a header the file's size
 *  denies. */
TW_API TW_WARN_UNUSED tw_status tw_dataset_open(tw_dataset **out, tw_context *context, const char *path, tw_split split, const tw_dataset_options *options);

/** Opens one IDX image file and its IDX label file (plain or gzip, told by content). */
TW_API TW_WARN_UNUSED tw_status tw_dataset_open_idx(tw_dataset **out, tw_context *context, const char *images_path, const char *labels_path, const tw_dataset_options *options);

/** A data set over a copy of arrays: count samples of channels x height x width (N,C,H,W), TW_U8 (0 .. 255) or TW_F32;
 *  one label each.
 *  Errors: ARGUMENT, LABEL (sample, value, classes), OVERFLOW, OUT_OF_MEMORY. */
TW_API TW_WARN_UNUSED tw_status tw_dataset_create_from(tw_dataset **out, tw_context *context, tw_dtype dtype, const void *images, int64_t count,
                                                       int channels, int height, int width, const int32_t *labels, const tw_dataset_options *options);

/** A data set of the samples indices[0 .. count-1] of another (copied). Errors: ARGUMENT if an index is outside. */
TW_API TW_WARN_UNUSED tw_status tw_dataset_create_subset(tw_dataset **out, const tw_dataset *dataset, const int64_t *indices, int64_t count);

/** Frees a data set, before its context; loaders over it must be gone before. NULL is fine. */
TW_API void tw_dataset_destroy(tw_dataset *dataset);

/** Number of samples. */
TW_API int64_t tw_dataset_count(const tw_dataset *dataset);
/** Number of classes. */
TW_API int tw_dataset_get_classes(const tw_dataset *dataset);
/** Name of a class; "" outside 0 .. classes-1. Borrowed. */
TW_API const char *tw_dataset_get_class_name(const tw_dataset *dataset, int index);
/** Channels of a sample. */
TW_API int tw_dataset_get_channels(const tw_dataset *dataset);
/** Height of a sample in pixels. */
TW_API int tw_dataset_get_height(const tw_dataset *dataset);
/** Width of a sample in pixels. */
TW_API int tw_dataset_get_width(const tw_dataset *dataset);
/** Element type of the stored samples: TW_U8 or TW_F32. */
TW_API tw_dtype tw_dataset_get_dtype(const tw_dataset *dataset);
/** The stored samples, N,C,H,W. Borrowed. */
TW_API const void *tw_dataset_get_images(const tw_dataset *dataset);
/** The labels, one a sample. Borrowed. */
TW_API const int32_t *tw_dataset_get_labels(const tw_dataset *dataset);

/** Mean and population standard deviation of every channel over all samples, on the scale the loader normalises:
 *  u8 is divided by 255 first. mean and deviation hold `channels` floats. A constant channel gives deviation 0. */
TW_API TW_WARN_UNUSED tw_status tw_dataset_measure(const tw_dataset *dataset, float *mean, float *deviation);

/** Largest number of channels a loader can normalise. */
#define TW_MAX_CHANNELS 16

/** How samples become network input: y = (x / 255 - mean[c]) / deviation[c] for u8, y = (x - mean[c]) / deviation[c]
 *  for f32. */
typedef struct tw_normalization {
    int channels;                     /**< 0: none given (mean 0, deviation 1) */
    float mean[TW_MAX_CHANNELS];
    float deviation[TW_MAX_CHANNELS]; /**< 0 counts as 1 */
} tw_normalization;

typedef struct tw_loader tw_loader;

typedef struct tw_loader_options {
    size_t size;
    int batch;                      /**< samples a batch; 0: 64. More than the data set has: one batch of all */
    int workers;                    /**< decoding threads beside the caller's; 0: batches are made in tw_loader_next
                                         itself */
    int prefetch;                   /**< batches made ahead; 0: 2 per worker */
    bool no_shuffle;                /**< keep the data set's order (evaluation) */
    bool drop_last;                 /**< leave out a shorter last batch; ARGUMENT if no batch is left */
    uint64_t seed;                  /**< governs order and augmentation */
    bool flip;                      /**< mirror left-right with probability 1/2 */
    int crop_padding;               /**< pad with zeros (after normalisation) by this many pixels and crop back at a
                                         random place */
    tw_normalization normalization; /**< channels 0: none */
    bool channels_last;             /**< images come as N,H,W,C instead of N,C,H,W */
} tw_loader_options;
#define TW_LOADER_OPTIONS_INIT {sizeof(tw_loader_options), 0, 0, 0, false, false, 0, false, 0, {0, {0}, {0}}, false}

/** One batch; everything in it is borrowed and valid until the next call on the loader. */
typedef struct tw_batch {
    const float *images;    /**< count x C x H x W, normalised; aligned to 64 bytes */
    const int32_t *labels;  /**< count labels */
    const int64_t *indices; /**< which samples of the data set these are */
    int count;              /**< samples in this batch; the last one of an epoch may be shorter */
    int64_t index;          /**< number of this batch in its epoch, from 0 */
} tw_batch;

/** A loader over a data set (borrowed: it must outlive the loader). The order of epoch e is a permutation drawn from
 *  (seed, e); flip and crop of a sample are drawn from (seed, epoch, sample): neither depends on workers, prefetch or
 *  batch size. */
TW_API TW_WARN_UNUSED tw_status tw_loader_create(tw_loader **out, const tw_dataset *dataset, const tw_loader_options *options);
/** Frees a loader, before its data set, and stops its workers. NULL is fine. */
TW_API void tw_loader_destroy(tw_loader *loader);
/** Batches an epoch. */
TW_API int64_t tw_loader_count(const tw_loader *loader);
/** Begins `epoch` (from 0) at batch `first_batch` (from 0); batches under way are dropped. */
TW_API TW_WARN_UNUSED tw_status tw_loader_start(tw_loader *loader, int64_t epoch, int64_t first_batch);
/** The next batch into *out, or count 0 and images NULL at the end of the epoch. */
TW_API TW_WARN_UNUSED tw_status tw_loader_next(tw_loader *loader, tw_batch *out);

#ifdef __cplusplus
}
#endif
#endif
