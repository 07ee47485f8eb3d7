#!/usr/bin/python3
"""Records small files as PyTorch users have them, and what PyTorch computes with them.

Writes weights_from_torch.h: the bytes of safetensors files, written by the safetensors package from a PyTorch state
dict in f32, f16 and bf16, and the outputs of that network in evaluation mode. Needs torch and safetensors; made with
torch 1.13.0 and safetensors 0.8.0. Run in this folder.
"""
import torch
import torch.nn as nn
from safetensors.torch import save


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 3, (3, 2), stride=1, padding=1)
        self.bn1 = nn.BatchNorm2d(3)
        self.fc1 = nn.Linear(3 * 4 * 5, 2)

    def forward(self, x):
        return self.fc1(torch.relu(self.bn1(self.conv1(x))).flatten(1))


def grid(*shape):
    """Numbers that differ along every axis and are exact in bf16: multiples of 1/64 below 2."""
    count = 1
    for size in shape:
        count *= size
    return ((torch.arange(count) * 37 % 127) - 63).float().reshape(shape) / 64


def rows(values, form, per_line):
    lines = [", ".join(form % v for v in values[i:i + per_line]) for i in range(0, len(values), per_line)]
    return ",\n    ".join(lines)


net = Net()
with torch.no_grad():
    for i, (name, tensor) in enumerate(net.state_dict().items()):
        if tensor.dtype == torch.int64:
            tensor.fill_(7)
        else:
            tensor.copy_(grid(*tensor.shape).roll(i) + (1.0 if name.endswith("var") else 0.0))
net.eval()
x = grid(2, 2, 4, 4)
with torch.no_grad():
    y = net(x)

with open("weights_from_torch.h", "w") as out:
    out.write("/* Written by make_safetensors.py: a network's files from PyTorch, and its outputs. */\n")
    for kind, dtype in (("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)):
        state = {k: v if v.dtype == torch.int64 else v.to(dtype) for k, v in net.state_dict().items()}
        data = save(state, {"format": "pt"})
        out.write("static const unsigned char torch_%s[] = {\n    %s};\n" % (kind, rows(list(data), "%d", 24)))
    out.write("static const float torch_x[] = {\n    %s};\n" % rows(x.flatten().tolist(), "%.9g", 8))
    out.write("static const float torch_y[] = {%s};\n" % rows(y.flatten().tolist(), "%.9g", 8))
    w = net.conv1.weight
    out.write("static const float torch_weight[] = {\n    %s};\n" % rows(w.flatten().tolist(), "%.9g", 8))
    out.write("static const float torch_var[] = {%s};\n" % rows(net.bn1.running_var.tolist(), "%.9g", 8))
