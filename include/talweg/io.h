/* Talweg: weight files. */
#ifndef TALWEG_IO_H
#define TALWEG_IO_H

#include <talweg/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Saves every parameter and buffer as safetensors, F32, under PyTorch's names and layouts (O,I,H,W; out,in); num_batches_tracked as I64.
 *  A tied parameter is there once, its aliases in __metadata__ ("alias": "name", as safetensors' save_model does).
 *  Written beside, flushed, then renamed: a cut or a full disk never costs the file that was there. How samples were normalised
 *  is not in the file: keep tw_trainer_get_normalization with it. Errors: FILE, STATE. */
TW_API TW_WARN_UNUSED tw_status tw_model_save(const tw_model *model, const char *path);

typedef struct tw_load_options {
    size_t size;
    bool partial;          /**< take what fits by name and shape; the log lists what was left out. Nothing fits: MISMATCH */
} tw_load_options;
#define TW_LOAD_OPTIONS_INIT {sizeof(tw_load_options), false}

/** Loads a safetensors file into a built model; F32, F16, BF16 (I64 for counters) are converted. Strict by default: every parameter must be
 *  there with its shape and nothing else may be. A tied parameter may be there under any of its names, or under several with the same values.
 *  Errors: FILE; FORMAT (what lies in the file, by tensor name); MISMATCH (lists missing, unexpected and mismatched tensors): the model is
 *  unchanged. */
TW_API TW_WARN_UNUSED tw_status tw_model_load(tw_model *model, const char *path, const tw_load_options *options);

#ifdef __cplusplus
}
#endif
#endif
