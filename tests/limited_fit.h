/* Fits under a memory limit, as the tests of it make them again and again: a task, the plan that a limit is measured by, and what
 * comes of a fit. */
#ifndef TALWEG_TESTS_LIMITED_FIT_H
#define TALWEG_TESTS_LIMITED_FIT_H

#include "small_task.h"
#include "trainer/trainer.h"

/* What was logged, down to level info. */
typedef struct lines {
    char text[8192];
} lines;
void keep_line(void *user, tw_log_level level, const char *line);

typedef struct setting {
    const char *name;
    tw_value *(*build)(tw_model *, tw_value *);
    int channels, side, batch, samples;
} setting;

/* The last batch is of one sample. An emulated device is slow, and gets less to do. */
const setting *task(void);
int epochs(void);
/* The task with another net: */
setting task_with(tw_value *(*build)(tw_model *, tw_value *));
tw_value *convolutions(tw_model *model, tw_value *x); /* the task's own, with dropout */
tw_value *norms(tw_model *model, tw_value *x);
tw_value *frozen_norms(tw_model *model, tw_value *x);

tw_value *lenet(tw_model *model, tw_value *x);
tw_value *resnet20(tw_model *model, tw_value *x);
tw_value *resnet18(tw_model *model, tw_value *x);

/* Those that finish within shares of what activations and workspaces of their plain plan take. */
enum { NETWORKS = 3, SHARES = 4 };
extern const setting networks[NETWORKS];
double limited_share(int network, int k);
/* A fit of one epoch, on one whole batch alone or, `measured`, on the setting's samples and with them as the test set. */
void fit_within(const setting *s, double share, bool measured);

tw_model *open_model(tw_context *context, const setting *s);
tw_dataset *open_data(tw_context *context, const setting *s);
/* Bytes that the plain plan of a fit takes: in all, and of that activations and workspaces. */
void plan_plain(tw_model *model, const tw_dataset *data, const tw_trainer_options *options, size_t *fixed, size_t *planned);

typedef struct learned {
    float *parameters;
    size_t count;
    double loss; /* of the last epoch */
    int parts;
    int64_t steps[64];
    int calls, stop_at; /* stop_at: of the calls; 0: never */
    bool exact;
    lines log;
} learned;

typedef struct fit {
    learned l;
    tw_context *context;
    tw_model *model;
    tw_dataset *data;
    tw_trainer *trainer;
} fit;

/* A trainer whose limit leaves such a share of what activations and workspaces take; 0: no limit. */
void open_fit(fit *f, const setting *s, tw_trainer_options options, double share);
void close_fit(fit *f);
/* Fits to the end, and closes. */
learned finish(fit *f);
/* All of it; `arrange` may change the context before fit. */
learned learn(const setting *s, tw_trainer_options options, double share, void (*arrange)(tw_context *));
void assert_near(const learned *a, const learned *b);
void drop(learned *l);

#endif
