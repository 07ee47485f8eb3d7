/* Talweg: files. A model file is the model whole: graph, weights, and what using it takes; tw_model_open makes the
 * model of it. A weights file is the weights alone, to be loaded into a model that is built already, or to be exchanged
 * with PyTorch.
 * Both are safetensors files. */
#ifndef TALWEG_IO_H
#define TALWEG_IO_H

#include <talweg/data.h>
#include <talweg/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what using a model takes beside its weights ---- */

/** How the model's input is normalised: what trainers of the model use that are given no other. tw_trainer_fit sets it
 *  to what it used.
 *  Copied; channels 0: not known. Errors: ARGUMENT; MISMATCH if the model's input is an image of other channels. */
TW_API TW_WARN_UNUSED tw_status tw_model_set_normalization(tw_model *model, const tw_normalization *normalization);
/** The normalisation that was set; channels 0: none was. */
TW_API tw_normalization tw_model_get_normalization(const tw_model *model);
/** Names the classes 0 .. count-1; at most as many as the output has. tw_trainer_fit takes them from its training set
 *  where there are none. Copied; count 0: none. Errors: ARGUMENT. */
TW_API TW_WARN_UNUSED tw_status tw_model_set_class_names(tw_model *model, const char *const *names, int count);
/** Number of classes that have a name. */
TW_API int tw_model_count_class_names(const tw_model *model);
/** Name of a class; "" where it has none. Borrowed until they are set anew. */
TW_API const char *tw_model_get_class_name(const tw_model *model, int index);

/* ---- model files ---- */

/** Saves the model whole: the part of its graph that its output is made from, the parameters and buffers of that part,
 *  which of them are trainable, its normalization and class names. A safetensors file as tw_model_save writes it, so
 *  that whoever reads weights can read these; the rest stands as JSON in __metadata__, under "talweg.version",
 *  ".graph", ".normalization" and ".class_names".
 *  The same model gives the same bytes. Errors: FILE; STATE; ARGUMENT (an attribute that is not finite). */
TW_API TW_WARN_UNUSED tw_status tw_model_save_whole(const tw_model *model, const char *path);

/** Opens a model file: *out is built, ready to predict with and to train on, and belongs to the caller
 *  (tw_model_destroy). Ops that are not the library's own must have been registered in the context. options: the seed,
 *  of trainers that set no other.
 *  Everything is checked before it is used, and no memory is taken on the word of a number that the file's size denies.
 *  Errors: FILE; FORMAT, ARGUMENT, SHAPE naming value or node; MISMATCH (graph and tensors disagree); UNSUPPORTED (a
 *  newer version; an op that the context does not have). */
TW_API TW_WARN_UNUSED tw_status tw_model_open(tw_model **out, tw_context *context, const char *path, const tw_model_options *options);

/* ---- weights files ---- */

/** Saves every parameter and buffer as safetensors, F32, under PyTorch's names and layouts (O,I,H,W; out,in);
 *  num_batches_tracked as I64.
 *  A tied parameter is there once, its aliases in __metadata__ ("alias": "name", as safetensors' save_model does).
 *  Written beside, flushed, then renamed: a cut or a full disk never costs the file that was there. The graph, and how
 *  samples are normalised, are not in the file: tw_model_save_whole. Errors: FILE, STATE. */
TW_API TW_WARN_UNUSED tw_status tw_model_save(const tw_model *model, const char *path);

typedef struct tw_load_options {
    size_t size;
    bool partial;          /**< take what fits by name and shape; the log lists what was left out. Nothing fits:
                                MISMATCH */
} tw_load_options;
#define TW_LOAD_OPTIONS_INIT {sizeof(tw_load_options), false}

/** Loads the weights of a safetensors file, a model file too, into a built model; F32, F16, BF16 (I64 for counters) are
 *  converted. Strict by default: every parameter must be there with its shape and nothing else may be. A tied parameter
 *  may be there under any of its names, or under several with the same values.
 *  Errors: FILE; FORMAT (what lies in the file, by tensor name); MISMATCH (lists missing, unexpected and mismatched
 *  tensors): the model is unchanged. */
TW_API TW_WARN_UNUSED tw_status tw_model_load(tw_model *model, const char *path, const tw_load_options *options);

#ifdef __cplusplus
}
#endif
#endif
