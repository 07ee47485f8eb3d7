#!/usr/bin/python3
"""Records clipped training by PyTorch, and what a loss scale does.

Writes guarded.h: gradients of six steps, their norms and the weights that torch.nn.utils.clip_grad_norm_ with SGD
(momentum 0.9) and AdamW make of them; and the scales that the rule of torch.cuda.amp.GradScaler gives for a row of good
and bad steps (its update() needs a GPU, so the documented rule is written out here), within a minimum and a maximum.
Needs torch; made with torch 1.13.0. Run in this folder.
"""
import torch

COUNT, STEPS, CLIP, RATE = 5, 6, 2.0, 0.05
SCALE, INTERVAL, MAXIMUM, MINIMUM = 256.0, 4, 512.0, 64.0
GOOD = [4, 4, 9, 0, 0, 0, 0, 0, 5, 1, 8, 8]  # good steps, then a bad one, and so on


def gradient(step):
    sizes = [0.3, 5.0, 40.0, 0.01, 2.0, 900.0]
    return [sizes[step] * (((7 * i + 3 * step) % 11) - 5) / 4 for i in range(COUNT)]


def train(make):
    w = torch.nn.Parameter(torch.zeros(COUNT))
    optimizer, norms, weights = make([w]), [], []
    for step in range(STEPS):
        w.grad = torch.tensor(gradient(step))
        norms.append(float(torch.nn.utils.clip_grad_norm_([w], CLIP)))
        optimizer.step()
        weights.append(w.detach().tolist())
    return norms, weights


def scales():
    scale, good, updates, rows = SCALE, 0, 0, []
    for bad in [b for n in GOOD for b in [0] * n + [1]]:
        if bad:
            scale, good = scale * 0.5, 0
        else:
            updates, good = updates + 1, good + 1
            if good == INTERVAL:
                scale, good = scale * 2, 0
        scale = min(max(scale, MINIMUM), MAXIMUM)
        rows.append((bad, scale, updates))
    return rows


def table(name, rows, kind="double"):
    body = ",\n".join("    {" + ", ".join("%.9g" % v + ("f" if kind == "float" and "%.9g" % v != "0" and
                      ("." in "%.9g" % v or "e" in "%.9g" % v) else "") for v in row) + "}" for row in rows)
    return "static const %s %s[GOLDEN_STEPS][GOLDEN_COUNT] = {\n%s};\n" % (kind, name, body)


def flat(name, values, kind, count):
    return "static const %s %s[%s] = {%s};\n" % (kind, name, count, ", ".join("%.9g" % v for v in values))


norms, sgd = train(lambda p: torch.optim.SGD(p, RATE, momentum=0.9))
_, adamw = train(lambda p: torch.optim.AdamW(p, RATE, weight_decay=0))
rows = scales()
with open("guarded.h", "w") as out:
    out.write("/* Made by make_guard.py with torch %s. */\n" % torch.__version__)
    out.write("#ifndef GOLDEN_GUARDED_H\n#define GOLDEN_GUARDED_H\n\n")
    out.write("/* clang-format off */\n")
    out.write("enum { GOLDEN_COUNT = %d, GOLDEN_STEPS = %d, GOLDEN_SCALES = %d };\n" % (COUNT, STEPS, len(rows)))
    for name in ("CLIP", "RATE", "SCALE", "INTERVAL", "MAXIMUM", "MINIMUM"):
        out.write("#define GOLDEN_%s %g\n" % (name, globals()[name]))
    out.write(table("golden_gradients", [gradient(s) for s in range(STEPS)], "float"))
    out.write(flat("golden_norms", norms, "double", "GOLDEN_STEPS"))
    out.write(table("golden_sgd", sgd) + table("golden_adamw", adamw))
    for name, k, kind in (("overflows", 0, "int"), ("scales", 1, "double"), ("updates", 2, "int")):
        out.write(flat("golden_" + name, [r[k] for r in rows], kind, "GOLDEN_SCALES"))
    out.write("/* clang-format on */\n\n#endif\n")
