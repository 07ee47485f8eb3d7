/* A plan as JSON. Unknown numbers are null. */
#include "plan_job.h"

#include <math.h>
#include <stdio.h>

static void number(const char *key, double value, const char *before) {
    printf("%s\"%s\": ", before, key);
    if (isnan(value) || isinf(value))
        fputs("null", stdout);
    else
        printf("%.17g", value);
}

/* A figure that is 0 where nothing is known. */
static void figure(const char *key, double value) { number(key, value > 0 ? value : NAN, ", "); }

static void print_card(const tw_card *card) {
    fputs("\"card\": {\"key\": ", stdout);
    twi_cli_print_json(card->key);
    fputs(", \"name\": ", stdout);
    twi_cli_print_json(card->name);
    printf(", \"capability\": %d, \"processors\": %d", card->capability, card->processors);
    figure("memory_bytes", (double)card->memory_bytes);
    figure("bandwidth", card->bandwidth);
    figure("f32", card->f32);
    figure("tf32", card->tf32);
    figure("bf16", card->bf16);
    figure("f16", card->f16);
    fputs(", \"source\": ", stdout);
    twi_cli_print_json(card->source);
    putchar('}');
}

static void print_memory(const tw_plan_memory *m) {
    const struct {
        const char *key;
        size_t bytes;
    } parts[] = {{"peak", m->peak_bytes},
                 {"parameters", m->parameter_bytes},
                 {"copies", m->copy_bytes},
                 {"gradients", m->gradient_bytes},
                 {"optimizer", m->optimizer_bytes},
                 {"activations", m->activation_bytes},
                 {"activation_gradients", m->activation_gradient_bytes},
                 {"workspace", m->workspace_bytes},
                 {"data", m->data_bytes},
                 {"unused", m->unused_bytes},
                 {"other", m->other_bytes},
                 {"overhead_estimate", m->overhead_bytes}};
    fputs("\"memory\": {", stdout);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        printf("%s\"%s\": %zu", i ? ", " : "", parts[i].key, parts[i].bytes);
    printf(", \"workspace_estimated\": %s, \"fits\": %s}", m->workspace_estimated ? "true" : "false",
           m->fits ? "true" : "false");
}

static void print_time(const tw_plan_time *t) {
    fputs("\"time\": {", stdout);
    printf("\"batches\": %lld, \"parts\": %lld", (long long)t->batches, (long long)t->parts);
    number("bytes", t->bytes, ", ");
    number("flops", t->flops, ", ");
    number("update_seconds", t->update_seconds, ", ");
    number("byte_share", t->byte_share, ", ");
    number("images_per_second", t->images_per_second, ", ");
    number("epoch_seconds", t->epoch_seconds, ", ");
    putchar('}');
}

static void print_works(const tw_plan *plan, const char *key, int count,
                        tw_status (*get)(const tw_plan *, int, tw_plan_work *)) {
    printf("\"%s\": [", key);
    for (int i = 0; i < count; i++) {
        tw_plan_work work = TW_PLAN_WORK_INIT;
        if (get(plan, i, &work)) continue;
        fputs(i ? ", {\"name\": " : "{\"name\": ", stdout);
        twi_cli_print_json(work.name);
        printf(", \"steps\": %d", work.steps);
        number("bytes", work.bytes, ", ");
        number("flops", work.flops, ", ");
        number("seconds", work.seconds, ", ");
        number("memory", (double)work.memory_bytes, ", ");
        putchar('}');
    }
    putchar(']');
}

void twi_card_print_json(const twi_planned *planned) {
    putchar('{');
    print_card(&planned->card);
    fputs(", ", stdout);
    print_memory(&planned->memory);
    fputs(", ", stdout);
    print_time(&planned->time);
    putchar('}');
}

void twi_planned_print_json(const twi_planned *p, const twi_job *job) {
    fputs("{\"model\": ", stdout);
    twi_cli_print_json(p->model);
    fputs(", \"device\": ", stdout);
    twi_cli_print_json(tw_context_get_device(p->context));
    printf(", \"batch\": %lld, \"precision\": \"%s\", \"optimizer\": \"%s\", \"classes\": %lld, \"weights\": %lld",
           (long long)p->batch, tw_precision_name(p->time.precision), job->optimizer, (long long)p->classes,
           (long long)p->weights);
    printf(", \"samples\": %lld, \"streamed\": %s, \"figures_measured\": %s,\n ", (long long)job->samples,
           p->memory.streamed ? "true" : "false", p->measured ? "true" : "false");
    print_card(&p->card);
    fputs(",\n ", stdout);
    print_memory(&p->memory);
    fputs(",\n ", stdout);
    print_time(&p->time);
    fputs(",\n ", stdout);
    print_works(p->plan, "layers", tw_plan_count_layers(p->plan), tw_plan_get_layer);
    fputs(",\n ", stdout);
    print_works(p->plan, "kinds", tw_plan_count_kinds(p->plan), tw_plan_get_kind);
    puts("}");
}
