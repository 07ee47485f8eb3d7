#!/usr/bin/python3
"""Records the losses of make_trajectories.py's trainings in bf16 and f16: writes trajectories_half.h.

What PyTorch's autocast does, written out: convolutions, dense layers, relu, pooling and sums of branches on halves, from f32 master
weights that are rounded for each use; batch norm's statistics and cross-entropy in f32; gradients of weights are halves. f16
convolutions are not there on PyTorch's CPU: the script computes them in f32 on operands that are halves, and rounds what comes out, as
the library does on the CPU. Losses are scaled by 1024 in f16, and gradients by 1/1024. Needs numpy and torch; made with torch 1.13.1. Run in
this folder, after make_trajectories.py, whose batches and weights it takes.
"""
import itertools
import re

import torch
import torch.nn.functional as F

source = open("make_trajectories.py").read()
exec(source[:source.index('with open("trajectories.h"')])  # its networks, batches and recipes

HALVES = {"bf16": torch.bfloat16, "f16": torch.float16}
SCALE = {"bf16": 1.0, "f16": 1024.0}


class Rounded(torch.autograd.Function):
    """A value as a half holds it; so is its gradient."""

    @staticmethod
    def forward(ctx, x, half):
        ctx.half = half
        return x.to(half).float()

    @staticmethod
    def backward(ctx, dy):
        return dy.to(ctx.half).float(), None


def install(net, half):
    """Every layer's output is a half, and so is the gradient of what it reads, its weights' included."""
    def rounded(x):
        return Rounded.apply(x, half)

    def conv(m, x):
        bias = None if m.bias is None else m.bias.to(half).float().detach() + m.bias - m.bias.detach()
        return rounded(F.conv2d(x, rounded(m.weight), bias, m.stride, m.padding))

    def dense(m, x):
        bias = m.bias.to(half).float().detach() + m.bias - m.bias.detach()
        return rounded(F.linear(x, rounded(m.weight), bias))

    def norm(m, x):
        return rounded(F.batch_norm(x, m.running_mean, m.running_var, m.weight, m.bias, True, m.momentum, m.eps))

    for m in net.modules():
        if isinstance(m, nn.Conv2d):
            m.forward = lambda x, m=m: conv(m, x)
        if isinstance(m, nn.Linear):
            m.forward = lambda x, m=m: dense(m, x)
        if isinstance(m, nn.BatchNorm2d):
            m.forward = lambda x, m=m: norm(m, x)


def run_half(kind, shape, name, optimizer, batch, half):
    torch.manual_seed(1)
    net = kind()
    with torch.no_grad():
        for tensor in net.state_dict().values():
            if tensor.dtype == torch.float32:
                tensor.copy_(tensor.half().float())
    install(net, HALVES[half])
    made = OPTIMIZERS[optimizer](groups(net, DECAY[optimizer]), RATES[name, optimizer][BATCHES.index(batch)])
    images, labels = batches(shape, batch)
    losses = []
    net.train()
    for step in range(STEPS):
        made.zero_grad()
        loss = F.cross_entropy(net(images[step].to(HALVES[half]).float()), labels[step])
        (loss * SCALE[half]).backward()
        for p in net.parameters():
            p.grad /= SCALE[half]
        made.step()
        losses.append(loss.item())
    return losses


with open("trajectories_half.h", "w") as out:
    out.write("/* Written by make_trajectories_half.py: PyTorch %s on the CPU. */\n" % torch.__version__.split("+")[0])
    recorded = dict(re.findall(r"double (\w+)\[\] = \{(.*?)\}", open("trajectories.h").read(), re.S))
    for kind, shape, name in ((LeNet5, (1, 28, 28), "lenet5"), (ResNet20, (3, 32, 32), "resnet20")):
        for optimizer, batch, half in itertools.product(OPTIMIZERS, BATCHES, HALVES):
            losses = run_half(kind, shape, name, optimizer, batch, half)
            f32 = [float(v) for v in recorded["%s_%s_%d" % (name, optimizer, batch)].split(",")]
            apart = max(abs(a - b) / b for a, b in zip(losses, f32))
            print(name, optimizer, batch, half, losses[0], losses[-1], "from f32: %.1e" % apart)
            rows = [", ".join("%.9g" % v for v in losses[i:i + 5]) for i in range(0, STEPS, 5)]
            out.write("static const double %s_%s_%d_%s[] = {\n    %s};\n" % (name, optimizer, batch, half, ",\n    ".join(rows)))
