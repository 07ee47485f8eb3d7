#!/usr/bin/python3
"""Records a learned activation as PyTorch computes it: prelu.h has inputs, slopes, outputs and gradients of nn.PReLU with a
slope a channel, for the loss mean over samples of sum y * g. Needs torch; made with torch 1.13.0. Run in this folder.
"""
import torch
import torch.nn as nn


def grid(step, *shape):
    """Numbers that differ along every axis: multiples of 1/32 below 2, none of them 0."""
    count = 1
    for size in shape:
        count *= size
    return ((torch.arange(count) * step % 127) - 63.5).float().reshape(shape) / 32


x = grid(37, 2, 3, 2, 5).requires_grad_()
g = grid(51, 2, 3, 2, 5)
layer = nn.PReLU(3)
with torch.no_grad():
    layer.weight.copy_(torch.tensor([0.25, -0.5, 1.5]))
y = layer(x)
(y * g).sum().div(x.shape[0]).backward()

with open("prelu.h", "w") as out:
    out.write("/* Written by make_prelu.py: PReLU in PyTorch, images [2, 3, 2, 5]. */\n")
    for name, tensor in (("x", x), ("g", g), ("slope", layer.weight), ("y", y), ("dx", x.grad),
                         ("dslope", layer.weight.grad)):
        values = ["%.9g" % v for v in tensor.detach().flatten().tolist()]
        rows = ",\n    ".join(", ".join(values[i:i + 10]) for i in range(0, len(values), 10))
        out.write("static const float prelu_%s[] = {\n    %s};\n" % (name, rows))
