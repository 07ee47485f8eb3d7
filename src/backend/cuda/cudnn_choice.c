/* Which of cuDNN's ways a convolution takes: the one remembered, or the first proposal that keeps the rules. */
#include "cudnn.h"

#ifdef TWI_HAVE_CUDNN

#include "cudnn_plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- rules ---- */

#define NOTE(name) (1u << CUDNN_NUMERICAL_NOTE_##name)

/* Sums are f32 sums of the products of the operands as they are, and the same every time. Transforms with large tiles,
 * whose rounding errors are far beyond those of a sum, are left out too. */
static const uint32_t refused_always = NOTE(NONDETERMINISTIC) | NOTE(DOWN_CONVERT_INPUTS) |
                                       NOTE(REDUCED_PRECISION_REDUCTION) | NOTE(FFT) | NOTE(WINOGRAD_TILE_6x6) |
                                       NOTE(WINOGRAD_TILE_13x13);
/* Tensor cores read f32 as TF32, which only steps of that type may. */
static const uint32_t refused_for_f32 = NOTE(TENSOR_CORE);

static size_t workspace_limit(const twi_cuda_dnn *dnn, const twi_dnn_problem *problem) {
    const bool lower = problem->workspace_limit && problem->workspace_limit < dnn->workspace_limit;
    return lower ? problem->workspace_limit : dnn->workspace_limit;
}

static tw_status make_fitting(const twi_cuda_dnn *dnn, twi_dnn_plan *plan, const twi_dnn_problem *problem,
                              const twi_dnn_choice *choice) {
    const bool f32 = problem->x.type == CUDNN_DATA_FLOAT && !problem->tf32;
    TWI_TRY(twi_dnn_make_plan(plan, choice, refused_always | (f32 ? refused_for_f32 : 0)));
    const size_t allowed = workspace_limit(dnn, problem);
    if (plan->workspace_bytes <= (int64_t)allowed) return TW_OK;
    const long long wanted = plan->workspace_bytes;
    twi_dnn_drop_plan(plan);
    return TWI_FAIL(TW_ERROR_UNSUPPORTED, "cuDNN: engine %lld wants %lld bytes of workspace, allowed are %zu",
                    (long long)choice->engine, wanted, allowed);
}

/* A candidate that fails is passed over, unless its failure is not its own. */
static bool is_fatal(const twi_cuda_dnn *dnn, tw_status status) {
    return status == TW_ERROR_OUT_OF_MEMORY || dnn->device->lost;
}

/* ---- candidates ---- */

enum { TRIALS = 6 };

typedef struct search {
    twi_cuda_dnn *dnn;
    twi_dnn_plan *plan;
    const twi_dnn_problem *problem;
    twi_dnn_choice best;
    double seconds; /* of the best; infinite: none yet */
    int timed;
    bool found;       /* `plan` is it */
    tw_status status; /* of the last candidate that was passed over */
} search;

static tw_status try_candidate(search *s, const twi_dnn_choice *choice) {
    double seconds = 0;
    s->status = make_fitting(s->dnn, s->plan, s->problem, choice);
    if (!s->status && s->dnn->trial) s->status = twi_dnn_time(s->plan, s->problem, &seconds);
    if (s->status) return is_fatal(s->dnn, s->status) ? s->status : TW_OK;
    s->found = !s->dnn->trial || ++s->timed == TRIALS;
    if (seconds < s->seconds) {
        s->seconds = seconds;
        s->best = *choice;
    }
    return TW_OK;
}

static tw_status try_mode(search *s, cudnnBackendHeurMode_t mode) {
    twi_dnn_choice choice[TWI_DNN_CANDIDATES];
    int count;
    s->status = twi_dnn_propose(s->dnn, s->plan->graph, mode, choice, &count);
    if (s->status) return is_fatal(s->dnn, s->status) ? s->status : TW_OK;
    for (int i = 0; i < count && !s->found; i++) TWI_TRY(try_candidate(s, &choice[i]));
    return TW_OK;
}

static tw_status search_all(search *s) {
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    for (int m = 0; m < 2 && !s->found; m++) TWI_TRY(try_mode(s, modes[m]));
    if (s->seconds < INFINITY) return s->dnn->trial ? make_fitting(s->dnn, s->plan, s->problem, &s->best) : TW_OK;
    if (!s->status) return TWI_FAIL(TW_ERROR_UNSUPPORTED, "cuDNN: its heuristics propose nothing");
    return twi_fail_within(TW_ERROR_UNSUPPORTED, "no candidate is left; the last one");
}

/* ---- choosing ---- */

enum { KEY_TEXT = 1024 };

static int print_tensor(char *out, size_t room, const char *name, const twi_dnn_tensor *t) {
    return snprintf(
        out, room, " %s%d:%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "/%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64,
        name, (int)t->type, t->dim[0], t->dim[1], t->dim[2], t->dim[3], t->stride[0], t->stride[1], t->stride[2],
        t->stride[3]);
}

/* All of the problem, as a line of text. */
static void print_key(char key[KEY_TEXT], const twi_cuda_dnn *dnn, const twi_dnn_problem *p) {
    const twi_conv2d_attrs *a = &p->attrs;
    int n = snprintf(key, KEY_TEXT, "conv%d%s%s%s pad%d,%d,%d,%d stride%d,%d dilation%d,%d", (int)p->direction,
                     p->bias ? "+bias" : "", p->relu ? "+relu" : "", p->tf32 ? "+tf32" : "", (int)a->pad_top,
                     (int)a->pad_left, (int)a->pad_bottom, (int)a->pad_right, (int)a->stride_h, (int)a->stride_w,
                     (int)a->dilation_h, (int)a->dilation_w);
    n += print_tensor(key + n, KEY_TEXT - (size_t)n, "x", &p->x);
    n += print_tensor(key + n, KEY_TEXT - (size_t)n, "w", &p->w);
    n += print_tensor(key + n, KEY_TEXT - (size_t)n, "y", &p->y);
    if (p->bias) n += print_tensor(key + n, KEY_TEXT - (size_t)n, "b", &p->b);
    if (workspace_limit(dnn, p) < dnn->workspace_limit)
        snprintf(key + n, KEY_TEXT - (size_t)n, " workspace%zu", p->workspace_limit);
}

static tw_status choose(twi_cuda_dnn *dnn, twi_dnn_plan *plan, const twi_dnn_problem *problem) {
    char key[KEY_TEXT];
    print_key(key, dnn, problem);
    twi_dnn_choice remembered;
    if (twi_dnn_cache_find(dnn, key, &remembered)) {
        tw_status status = make_fitting(dnn, plan, problem, &remembered);
        if (!status || is_fatal(dnn, status)) return status;
    }
    search s = {.dnn = dnn, .plan = plan, .problem = problem, .seconds = INFINITY};
    TWI_TRY(search_all(&s));
    return twi_dnn_cache_put(dnn, key, &plan->choice);
}

tw_status twi_dnn_choose(twi_cuda_dnn *dnn, twi_dnn_plan *plan, const twi_dnn_problem *problem) {
    TWI_TRY(twi_dnn_make_graph(plan, dnn, problem));
    tw_status status = choose(dnn, plan, problem);
    if (status) twi_dnn_free(&plan->set);
    return status;
}

#endif
