/* Ops of a user's as ops like the others: their shape rule, steps and kernels, which pass every call on to the user's
 * callbacks. Checking and keeping what a user registers is in user_register.c. */
#include "user_op.h"
#include "base/philox.h"
#include "kernels.h"
#include "rules.h"

#include <stdio.h>
#include <string.h>

/* Operands: inputs, output; in backward then the output's gradient and those of the inputs. */
enum { OPERANDS = 2 * TW_OP_MAX_INPUTS + 2 };
_Static_assert((int)OPERANDS <= (int)TWI_MAX_OPERANDS, "a backward must fit a call");

/* ---- calls ---- */

typedef struct user_call {
    tw_op_call call;
    tw_op_tensor tensor[OPERANDS];
} user_call;

static void describe(tw_op_tensor *tensor, void *data, const twi_shape *shape, const int64_t *strides) {
    tensor->data = data;
    tensor->dtype = TW_F32;
    tensor->rank = shape->rank;
    memcpy(tensor->dims, shape->dim, sizeof tensor->dims);
    if (strides) memcpy(tensor->strides, strides, sizeof tensor->strides);
}

/* What is not handed over still has the shape of its twin. */
static void shape_like(tw_op_tensor *absent, const tw_op_tensor *twin) {
    if (absent->rank > 0) return;
    *absent = *twin;
    absent->data = NULL;
}

static void translate(user_call *out, const twi_call *call) {
    const twi_user_op *user = call->kernel->user;
    bool backward = call->kernel == &user->backward;
    memset(out, 0, sizeof *out);
    for (int o = 0; o < call->operand_count; o++) {
        const twi_operand *operand = &call->operand[o];
        describe(&out->tensor[o], operand->data, &operand->shape, operand->stride);
    }
    tw_op_tensor *output = &out->tensor[user->input_count], *output_gradient = output + 1, *gradients = output + 2;
    for (int i = 0; backward && i < user->input_count; i++) {
        shape_like(&out->tensor[i], &gradients[i]);
        shape_like(&gradients[i], &out->tensor[i]);
    }
    if (backward) shape_like(output, output_gradient);
    out->call = (tw_op_call){.user = user->given.user,
                             .attrs = call->attrs,
                             .training = call->kernel != &user->predict,
                             .backward = backward,
                             .inputs = out->tensor,
                             .output = output,
                             .output_gradient = backward ? output_gradient : NULL,
                             .input_gradients = backward ? gradients : NULL,
                             .workspace = call->workspace,
                             .library = call};
}

/* Gradients of parameters are added to. Those that sum over calls the runner clears. */
static void clear_whole(const twi_call *call) {
    for (int o = 0; o < call->operand_count; o++) {
        const twi_operand_rule *rule = &call->kernel->operand[o];
        const twi_operand *operand = &call->operand[o];
        if (rule->access == TWI_WRITE && rule->reach == TWI_WHOLE && operand->data)
            memset(operand->data, 0, (size_t)twi_shape_count(&operand->shape) * sizeof(float));
    }
}

static void run(const twi_call *call) {
    user_call translated;
    const twi_user_op *user = call->kernel->user;
    translate(&translated, call);
    clear_whole(call);
    (translated.call.backward ? user->given.backward_cpu : user->given.forward_cpu)(&translated.call);
}

static void enqueue(const twi_call *call, void *workspace, void *stream) {
    user_call translated;
    const twi_user_op *user = call->kernel->user;
    translate(&translated, call);
    translated.call.workspace = workspace;
    translated.call.stream = stream;
    (translated.call.backward ? user->given.backward_cuda : user->given.forward_cuda)(&translated.call);
}

static size_t workspace(const twi_call *call) {
    user_call translated;
    translate(&translated, call);
    return call->kernel->user->given.workspace(&translated.call);
}

static double flops(const twi_call *call) {
    user_call translated;
    translate(&translated, call);
    return call->kernel->user->given.flops(&translated.call);
}

void tw_op_fault(const tw_op_call *given, int64_t sample, double value) {
    const twi_call *call = given->library;
    twi_fault_raise(call->control, TW_ERROR_NUMERIC, call->node, twi_call_position(call, sample), value);
}

void tw_op_draw(const tw_op_call *given, int64_t sample, uint32_t index, uint32_t words[4]) {
    const twi_call *call = given->library;
    uint64_t place = (uint64_t)twi_call_position(call, sample) << 32 | index;
    twi_draw(call->control->seed, TWI_PURPOSE_OP, twi_call_stream(call), place, words);
}

/* ---- shape rule ---- */

static tw_status check_inputs(const twi_infer *infer, const twi_user_op *user) {
    char text[TWI_SHAPE_TEXT];
    for (int i = 0; i < infer->input_count; i++) {
        char what[24];
        bool value = i < user->given.inputs;
        snprintf(what, sizeof what, "input %d", i);
        TWI_TRY(twi_rule_input(infer, i, what, infer->input[i].rank, value));
        if (!value && user->given.layout == TW_OP_ROW_MAJOR && infer->input[i].rank == 4)
            return TWI_FAIL(TW_ERROR_SHAPE,
                            "%s '%s': parameter %s lies O,H,W,I, and the op wants row-major order; give it other axes, "
                            "or state TW_OP_ANY_LAYOUT and go by the strides",
                            infer->op->name, infer->name, twi_shape_text(&infer->input[i], text));
    }
    return TW_OK;
}

static tw_status ask_user(const twi_infer *infer, const twi_user_op *user, twi_shape *shape) {
    user_call asked = {.call = {.user = user->given.user, .attrs = infer->attrs, .inputs = asked.tensor}};
    tw_op_tensor output = {0};
    for (int i = 0; i < infer->input_count; i++) describe(&asked.tensor[i], NULL, &infer->input[i], NULL);
    describe(&output, NULL, &infer->input[0], NULL);
    if (user->given.infer) {
        tw_clear_error();
        tw_status status = user->given.infer(&asked.call, &output);
        if (status && !*tw_last_error())
            status = TWI_FAIL(status, "the op's shape rule refuses the inputs without saying why");
        if (status) return twi_fail_within(status, "%s '%s'", infer->op->name, infer->name);
    }
    bool fits = output.rank >= 1 && output.rank <= TW_MAX_RANK && output.dims[0] == infer->input[0].dim[0];
    for (int axis = 0; fits && axis < output.rank; axis++) {
        shape->dim[axis] = output.dims[axis];
        fits = output.dims[axis] >= 1;
    }
    shape->rank = output.rank;
    return fits ? TW_OK
                : TWI_FAIL(TW_ERROR_SHAPE,
                           "%s '%s': the op's shape rule made no output shape: expected 1 to %d axes of 1 or more, the "
                           "first as it is in the input",
                           infer->op->name, infer->name, TW_MAX_RANK);
}

static tw_status infer(twi_infer *infer) {
    const twi_user_op *user = twi_user_op_of(infer->op);
    twi_shape shape = {0};
    TWI_TRY(check_inputs(infer, user));
    TWI_TRY(ask_user(infer, user, &shape));
    return twi_rule_output(infer, shape);
}

/* ---- lowering ---- */

/* The layout pass drops copies that move nothing. */
static void copy(twi_lower *lower, twi_ref from, twi_ref to) {
    twi_lower_step(lower, &twi_kernel_reshape_copy, (twi_ref[]){from, to});
}

/* A value to read, in the order the op wants it. */
static twi_ref readable(twi_lower *lower, const twi_user_op *user, twi_ref ref) {
    if (user->given.layout == TW_OP_ANY_LAYOUT || ref < 0) return ref;
    twi_ref ordered = twi_lower_row_major(lower, ref);
    copy(lower, ref, ordered);
    return ordered;
}

/* A value to write; `finish` brings it into its own order. */
static twi_ref writable(twi_lower *lower, const twi_user_op *user, twi_ref ref) {
    return user->given.layout == TW_OP_ANY_LAYOUT || ref < 0 ? ref : twi_lower_row_major(lower, ref);
}

static void finish(twi_lower *lower, twi_ref written, twi_ref ref) {
    if (written != ref) copy(lower, written, ref);
}

static void read_inputs(twi_lower *lower, const twi_user_op *user, unsigned ignored, twi_ref *refs) {
    for (int i = 0; i < user->input_count; i++) {
        refs[i] = ignored & TW_OP_INPUT(i) ? TWI_NO_REF : twi_lower_input(lower, i);
        if (i < user->given.inputs) refs[i] = readable(lower, user, refs[i]);
    }
}

static void forward(twi_lower *lower) {
    const twi_user_op *user = twi_user_op_of(twi_lower_op(lower));
    twi_ref refs[OPERANDS], output = twi_lower_output(lower, 0);
    read_inputs(lower, user, 0, refs);
    refs[user->input_count] = writable(lower, user, output);
    twi_lower_step(lower, twi_lower_training(lower) ? &user->train : &user->predict, refs);
    finish(lower, refs[user->input_count], output);
}

/* The copies are made again: keeping those of the forward would take more memory than copying takes time. */
static void backward(twi_lower *lower) {
    const twi_user_op *user = twi_user_op_of(twi_lower_op(lower));
    unsigned ignored = user->given.backward_ignores;
    twi_ref refs[OPERANDS], gradient[TW_OP_MAX_INPUTS];
    read_inputs(lower, user, ignored, refs);
    twi_ref *next = &refs[user->input_count];
    *next++ = ignored & TW_OP_OUTPUT ? TWI_NO_REF : readable(lower, user, twi_lower_output(lower, 0));
    *next++ = readable(lower, user, twi_lower_output_gradient(lower, 0));
    for (int i = 0; i < user->input_count; i++) {
        gradient[i] = twi_lower_input_gradient(lower, i);
        next[i] = i < user->given.inputs ? writable(lower, user, gradient[i]) : gradient[i];
    }
    twi_lower_step(lower, &user->backward, refs);
    for (int i = 0; i < user->input_count; i++) finish(lower, next[i], gradient[i]);
}

/* ---- records ---- */

static void fill_kernel(twi_user_op *user, twi_kernel *kernel, const char *name, bool back, bool cpu, bool cuda) {
    static const char *const read_names[] = {"x0", "x1", "x2", "x3"};
    static const char *const gradient_names[] = {"dx0", "dx1", "dx2", "dx3"};
    int inputs = user->input_count;
    uint8_t sum = user->given.at_once ? TWI_WHOLE : TWI_SUMMED;
    kernel->name = name;
    kernel->operand_count = (uint8_t)(back ? 2 * inputs + 2 : inputs + 1);
    kernel->operand[inputs] = (twi_operand_rule){"y", back ? TWI_READ : TWI_WRITE, TWI_REAL, TWI_BATCHED, 0};
    if (back) kernel->operand[inputs + 1] = (twi_operand_rule){"dy", TWI_READ, TWI_REAL, TWI_BATCHED, 0};
    for (int i = 0; i < inputs; i++) {
        bool value = i < user->given.inputs;
        uint8_t store = value ? TWI_REAL : TWI_ACC;
        kernel->operand[i] = (twi_operand_rule){read_names[i], TWI_READ, store, value ? TWI_BATCHED : TWI_WHOLE, 0};
        if (back)
            kernel->operand[inputs + 2 + i] =
                (twi_operand_rule){gradient_names[i], TWI_WRITE, store, value ? TWI_BATCHED : sum, 0};
    }
    kernel->split = user->given.at_once ? TWI_AT_ONCE : TWI_BY_SAMPLE;
    kernel->types = TWI_TYPES_F32; /* what callbacks are handed */
    kernel->user = user;
    kernel->nondeterministic = user->given.nondeterministic;
    kernel->flops = user->given.flops ? flops : NULL;
    kernel->workspace = user->given.workspace ? workspace : NULL;
    kernel->run = cpu ? run : NULL;
    kernel->enqueue = cuda ? enqueue : NULL;
}

void twi_user_op_fill(twi_user_op *user, const char *const names[3]) {
    const tw_op_options *given = &user->given;
    bool back = given->backward_cpu || given->backward_cuda;
    fill_kernel(user, &user->predict, names[0], false, given->forward_cpu, given->forward_cuda);
    fill_kernel(user, &user->train, names[1], false, given->forward_cpu, given->forward_cuda);
    fill_kernel(user, &user->backward, names[2], true, given->backward_cpu, given->backward_cuda);
    user->kernels[0] = &user->predict;
    user->kernels[1] = &user->train;
    user->kernels[2] = back ? &user->backward : NULL;
    user->op.formula = given->formula;
    user->op.inputs_min = user->op.inputs_max = (uint8_t)user->input_count;
    user->op.outputs = 1;
    user->op.attr_size = given->attrs_size;
    user->op.infer = infer;
    user->op.forward = forward;
    user->op.backward = back ? backward : NULL;
    user->op.kernels = user->kernels;
}

const twi_user_op *twi_user_op_of(const twi_op *op) {
    return op && op->infer == infer ? (const twi_user_op *)op : NULL;
}
