#!/usr/bin/python3
"""Records both forms of gelu as PyTorch computes them in f64: gelu.h has inputs, outputs and slopes. Needs torch; made with torch
1.13.0. Run in this folder.
"""
import torch
import torch.nn.functional as F

INPUTS = [0, -0.5, 0.5, 1, -1, 0.03125, -0.75, 2.5, -2.5, 3, -3.25, 4, -5, 6.5, -8, 12, -0.001, 1e-6, -12.5, 30, -40]


def write(out, name, values):
    rows = ["%.9g" % v for v in values]
    lines = ",\n    ".join(", ".join(rows[i:i + 8]) for i in range(0, len(rows), 8))
    out.write("static const double %s[] = {\n    %s};\n" % (name, lines))


with open("gelu.h", "w") as out:
    out.write("/* Written by make_gelu.py: gelu in PyTorch, its two forms. */\n")
    write(out, "gelu_x", INPUTS)
    for name, form in (("erf", "none"), ("tanh", "tanh")):
        x = torch.tensor(INPUTS, dtype=torch.float64).requires_grad_()
        y = F.gelu(x, approximate=form)
        y.sum().backward()
        write(out, "gelu_%s_y" % name, y.tolist())
        write(out, "gelu_%s_slope" % name, x.grad.tolist())
