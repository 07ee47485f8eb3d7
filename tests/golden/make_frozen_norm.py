#!/usr/bin/python3
"""Records training through frozen batch norms as PyTorch does it: modules that train, but for BatchNorm2d in eval mode, whose
gamma and beta learn. frozen_norm.h has weights, running statistics, inputs, the loss, logits and all gradients. Needs torch; made
with torch 1.13.0. Run in this folder.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def grid(step, divisor, *shape):
    """Numbers that differ along every axis: multiples of 1/divisor, none of them 0."""
    count = 1
    for size in shape:
        count *= size
    return ((torch.arange(count) * step % 127) - 63.5).float().reshape(shape) / divisor


class Net(nn.Module):
    """relu(bn1(conv1)), then relu(bn2(conv2) + what went in), then a dense layer."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(4, eps=1e-3)
        self.fc1 = nn.Linear(36, 3)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)) + x)
        return self.fc1(x.flatten(1))


net = Net().train()
steps = {"conv1.weight": 37, "bn1.weight": 11, "bn1.bias": 29, "conv2.weight": 53, "bn2.weight": 17, "bn2.bias": 31,
         "fc1.weight": 71, "fc1.bias": 43, "bn1.running_mean": 19, "bn2.running_mean": 23}
with torch.no_grad():
    for name, tensor in list(net.named_parameters()) + list(net.named_buffers()):
        if name in steps:
            tensor.copy_(grid(steps[name], 128, *tensor.shape))
    net.bn1.running_var.copy_(torch.tensor([0.25, 2, 1.5, 0.75]))
    net.bn2.running_var.copy_(torch.tensor([3, 0.125, 0.5, 1]))
net.bn1.eval()
net.bn2.eval()

x = grid(37, 32, 5, 2, 3, 3).requires_grad_()
labels = torch.tensor([0, 2, 1, 1, 2])
logits = net(x)
loss = F.cross_entropy(logits, labels)
loss.backward()

with open("frozen_norm.h", "w") as out:
    def write(name, tensor):
        values = ["%.9g" % v for v in tensor.detach().flatten().tolist()]
        rows = ",\n    ".join(", ".join(values[i:i + 10]) for i in range(0, len(values), 10))
        out.write("static const float frozen_%s[] = {\n    %s};\n" % (name.replace(".", "_"), rows))

    out.write("/* Written by make_frozen_norm.py: a net with frozen batch norms in PyTorch, images [5, 2, 3, 3]. */\n")
    write("x", x)
    write("logits", logits)
    write("loss", loss)
    write("dx", x.grad)
    for name, tensor in net.named_parameters():
        write(name, tensor)
        write("d_" + name, tensor.grad)
    for name, tensor in net.named_buffers():
        if "num_batches" not in name:
            write(name, tensor)
