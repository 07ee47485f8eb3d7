/* The history as a picture: two panels, loss and accuracy over epochs, of training and test. SVG, which every browser
 * shows. */
#include "trainer.h"

#include <math.h>

enum { WIDTH = 960, HEIGHT = 420, PANELS = 2, SERIES = 2, MARKED_EPOCHS = 40 };

static const char *const series_name[SERIES] = {"train", "test"}, *const series_colour[SERIES] = {"#2f6db5", "#d9621f"};

/* Values of one quantity, as drawn. */
typedef double (*value_fn)(const tw_metrics *metrics);

static double loss_of(const tw_metrics *metrics) { return metrics->loss; }
static double accuracy_of(const tw_metrics *metrics) { return 100 * metrics->top1; }

/* An axis: first and last value and the distance of its ticks. */
typedef struct axis {
    double first, last, tick;
} axis;

typedef struct panel {
    const char *title;
    value_fn value;
    bool from_zero; /* the axis begins at 0, else it ends at 100 */
    double left, top, width, height;
} panel;

static const panel panels[PANELS] = {
    {"loss", loss_of, true, 76, 84, 368, 272},
    {"accuracy (%)", accuracy_of, false, 556, 84, 368, 272},
};

static const tw_metrics *metrics_of(const tw_history_row *row, int series) { return series ? &row->test : &row->train; }

/* ---- axes ---- */

/* A distance of 1, 2 or 5 times a power of ten that cuts `range` into about `count` parts. */
static double nice_tick(double range, int count) {
    static const double steps[] = {1, 2, 5, 10};
    const double raw = range / count, power = pow(10, floor(log10(raw)));
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (raw <= steps[i] * power * 1.0001) return steps[i] * power;
    return 10 * power;
}

static axis epoch_axis(const tw_trainer *trainer) {
    const int first = trainer->history[0].epoch, last = trainer->history[trainer->history_count - 1].epoch;
    if (first == last) return (axis){first - 1, last + 1, 1};
    return (axis){first, last, fmax(1, nice_tick(last - first, 8))};
}

static axis value_axis(const tw_trainer *trainer, const panel *p) {
    double low = INFINITY, high = -INFINITY;
    for (int i = 0; i < trainer->history_count; i++)
        for (int s = 0; s < SERIES; s++) {
            const tw_metrics *metrics = metrics_of(&trainer->history[i], s);
            if (!metrics->samples) continue;
            low = fmin(low, p->value(metrics));
            high = fmax(high, p->value(metrics));
        }
    if (p->from_zero) {
        const double top = high > 0 ? high : 1, tick = nice_tick(top, 6);
        return (axis){0, ceil(top / tick - 1e-9) * tick, tick};
    }
    const double bottom = fmin(low, 99), tick = nice_tick(100 - bottom, 6);
    return (axis){floor(bottom / tick + 1e-9) * tick, 100, tick};
}

static double along(const axis *a, double value) { return (value - a->first) / (a->last - a->first); }
static double x_of(const panel *p, const axis *a, double epoch) { return p->left + along(a, epoch) * p->width; }
static double y_of(const panel *p, const axis *a, double value) { return p->top + (1 - along(a, value)) * p->height; }

/* ---- drawing ---- */

static void draw_text(twi_atomic_file *file, double x, double y, const char *style, const char *text) {
    twi_atomic_file_print(file, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">%s</text>\n", x, y, style, text);
}

static void draw_line(twi_atomic_file *file, const char *style, double x1, double y1, double x2, double y2) {
    twi_atomic_file_print(file, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", style, x1, y1,
                          x2, y2);
}

static void draw_number(twi_atomic_file *file, double x, double y, const char *style, double value, double tick) {
    const int decimals = tick < 1 && tick >= 1e-4 ? (int)ceil(-log10(tick) - 1e-9) : 0;
    const bool plain = tick >= 1e-4 && fabs(value) < 1e6;
    twi_atomic_file_print(file, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, style);
    twi_atomic_file_print(file, plain ? "%.*f" : "%.*g", plain ? decimals : 3, fabs(value) < tick / 2 ? 0 : value);
    twi_atomic_file_print(file, "</text>\n");
}

static void draw_axes(const tw_trainer *trainer, twi_atomic_file *file, const panel *p, const axis *xa,
                      const axis *ya) {
    const double bottom = p->top + p->height, right = p->left + p->width;
    for (double v = ya->first; v <= ya->last + ya->tick / 100; v += ya->tick) {
        draw_line(file, "grid", p->left, y_of(p, ya, v), right, y_of(p, ya, v));
        draw_number(file, p->left - 8, y_of(p, ya, v) + 4, "end", v, ya->tick);
    }
    for (int i = 0; i < trainer->history_count;
         i++) { /* the first epoch, then multiples of the distance: 1, 5, 10, 15, ... */
        const int epoch = trainer->history[i].epoch;
        if (i == 0 ? xa->tick == 2 : fmod(epoch, xa->tick) != 0) continue;
        draw_line(file, "axis", x_of(p, xa, epoch), bottom, x_of(p, xa, epoch), bottom + 5);
        draw_number(file, x_of(p, xa, epoch), bottom + 20, "middle", epoch, 1);
    }
    draw_line(file, "axis", p->left, p->top, p->left, bottom);
    draw_line(file, "axis", p->left, bottom, right, bottom);
    draw_text(file, p->left, p->top - 14, "panel", p->title);
    draw_text(file, (p->left + right) / 2, bottom + 42, "middle", "epoch");
}

static void draw_series(const tw_trainer *trainer, twi_atomic_file *file, const panel *p, const axis *xa,
                        const axis *ya, int series) {
    twi_atomic_file_print(file, "<polyline class=\"curve\" stroke=\"%s\" points=\"", series_colour[series]);
    for (int i = 0; i < trainer->history_count; i++) {
        const tw_metrics *metrics = metrics_of(&trainer->history[i], series);
        if (metrics->samples)
            twi_atomic_file_print(file, "%.1f,%.1f ", x_of(p, xa, trainer->history[i].epoch),
                                  y_of(p, ya, p->value(metrics)));
    }
    twi_atomic_file_print(file, "\"/>\n");
    for (int i = 0; i < trainer->history_count && trainer->history_count <= MARKED_EPOCHS; i++) {
        const tw_metrics *metrics = metrics_of(&trainer->history[i], series);
        if (!metrics->samples) continue;
        twi_atomic_file_print(file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                              x_of(p, xa, trainer->history[i].epoch), y_of(p, ya, p->value(metrics)),
                              series_colour[series]);
    }
}

static bool has_series(const tw_trainer *trainer, int series) {
    for (int i = 0; i < trainer->history_count; i++)
        if (metrics_of(&trainer->history[i], series)->samples) return true;
    return false;
}

static void draw_legend(const tw_trainer *trainer, twi_atomic_file *file) {
    double x = WIDTH - 36;
    for (int s = SERIES - 1; s >= 0; s--) {
        if (!has_series(trainer, s)) continue;
        x -= 70;
        twi_atomic_file_print(file,
                              "<line class=\"curve\" stroke=\"%s\" x1=\"%.1f\" y1=\"34\" x2=\"%.1f\" y2=\"34\"/>\n",
                              series_colour[s], x, x + 24);
        draw_text(file, x + 30, 38, "start", series_name[s]);
    }
}

static void draw_title(const tw_trainer *trainer, twi_atomic_file *file) {
    const tw_history_row *last = &trainer->history[trainer->history_count - 1];
    twi_atomic_file_print(file, "<text x=\"%.1f\" y=\"38\" class=\"title\">Learning curve: %d epoch%s, ",
                          panels[0].left, last->epoch, last->epoch == 1 ? "" : "s");
    const int series = last->test.samples ? 1 : 0;
    twi_atomic_file_print(file, "%s accuracy %.2f %%</text>\n", series_name[series],
                          accuracy_of(metrics_of(last, series)));
}

static void write_svg(const tw_trainer *trainer, twi_atomic_file *file) {
    twi_atomic_file_print(
        file,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\">\n"
        "<style>text{font:13px sans-serif;fill:#333}.title{font-size:17px;font-weight:bold}.panel{font-weight:bold}"
        ".end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:#e4e4e4}.axis{stroke:#555}"
        ".curve{fill:none;stroke-width:2;stroke-linejoin:round}</style>\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT);
    draw_title(trainer, file);
    draw_legend(trainer, file);
    const axis epochs = epoch_axis(trainer);
    for (int i = 0; i < PANELS; i++) {
        const axis values = value_axis(trainer, &panels[i]);
        draw_axes(trainer, file, &panels[i], &epochs, &values);
        for (int s = 0; s < SERIES; s++) draw_series(trainer, file, &panels[i], &epochs, &values, s);
    }
    twi_atomic_file_print(file, "</svg>\n");
}

tw_status tw_trainer_save_curve(const tw_trainer *trainer, const char *path) {
    if (!trainer || !path)
        return TWI_FAIL(TW_ERROR_ARGUMENT, "tw_trainer_save_curve: %s is NULL", trainer ? "path" : "trainer");
    if (!trainer->history_count)
        return TWI_FAIL(TW_ERROR_STATE,
                        "tw_trainer_save_curve: %s: no epoch has ended yet, so there is nothing to draw", path);
    return twi_history_save(trainer, path, write_svg);
}
