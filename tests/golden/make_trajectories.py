#!/usr/bin/python3
"""Records what PyTorch does: losses of the first 20 training steps of LeNet-5 and ResNet-20.

Writes lenet5.safetensors and resnet20.safetensors (PyTorch's own initial weights, rounded to f16 so that both sides
start from the very same numbers) and trajectories.h (the losses, f32 training on the CPU). Inputs come from an integer
hash that tests/test_trajectories.c repeats. Needs numpy and torch; made with torch 1.13.1. Run in this folder.
"""
import itertools
import json
import struct

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS, BATCHES = 20, (32, 8)  # the small one is for devices that are emulated


def hashed(n):
    """n 32-bit words: a multiply-xorshift of the counter."""
    x = np.arange(n, dtype=np.uint64) & 0xFFFFFFFF
    for multiplier in (0x7FEB352D, 0x846CA68B):
        x ^= x >> np.uint64(16)
        x = (x * np.uint64(multiplier)) & np.uint64(0xFFFFFFFF)
    return (x ^ (x >> np.uint64(16))).astype(np.uint32)


def batches(shape, batch):
    """Images in [-1, 1): half a pattern of the class, half noise. Labels: sample index modulo 10, hashed."""
    pixels = int(np.prod(shape))
    count = STEPS * batch
    labels = (hashed(count) % 10).astype(np.int64)
    noise = (hashed(count * pixels) >> 8).astype(np.float32) * np.float32(2.0 ** -24)
    pattern = ((labels[:, None] * 7919 + np.arange(pixels)[None, :] * 104729) % 251).astype(np.float32) / np.float32(251)
    images = noise.reshape(count, pixels) + pattern - np.float32(1)
    return (torch.from_numpy(images.reshape(STEPS, batch, *shape)), torch.from_numpy(labels.reshape(STEPS, batch)))


class LeNet5(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        widths = (16, 16, 32, 64)
        for s in range(3):
            blocks = [Block(widths[s] if b == 0 else widths[s + 1], widths[s + 1], 2 if s and b == 0 else 1) for b in range(3)]
            setattr(self, f"layer{s + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def save(state, path):
    header, data = {}, b""
    for name, tensor in state.items():
        kind, raw = ("I64", tensor.numpy().tobytes()) if tensor.dtype == torch.int64 else ("F16", tensor.half().numpy().tobytes())
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


OPTIMIZERS = {
    "sgd": lambda p, rate: torch.optim.SGD(p, rate, momentum=0.9, nesterov=True),
    "adamw": lambda p, rate: torch.optim.AdamW(p, rate),
}
DECAY = {"sgd": 5e-4, "adamw": 0.01}
# Rates at which f32 and f64 stay within 3e-5 of each other: at larger ones ResNet-20 multiplies rounding errors so fast
# (7 % after 20 steps at SGD 0.02) that no two f32 programs agree, PyTorch's own two layouts included. The fewer samples
# a batch norm has, the faster: at batch 8 and SGD 2e-4 they are 2.3e-4 apart.
RATES = {("lenet5", "sgd"): (0.02, 0.02), ("lenet5", "adamw"): (1e-3, 1e-3),
         ("resnet20", "sgd"): (2e-4, 5e-5), ("resnet20", "adamw"): (3e-5, 1e-5)}


def groups(net, decay):
    """Weight decay on weights only: not on biases and norm parameters."""
    weights = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() <= 1]
    return [{"params": weights, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def run(kind, shape, name, optimizer, batch):
    torch.manual_seed(1)
    net = kind()
    with torch.no_grad():
        for tensor in net.state_dict().values():
            if tensor.dtype == torch.float32:
                tensor.copy_(tensor.half().float())
    save(net.state_dict(), f"{name}.safetensors")
    made = OPTIMIZERS[optimizer](groups(net, DECAY[optimizer]), RATES[name, optimizer][BATCHES.index(batch)])
    images, labels = batches(shape, batch)
    losses = []
    net.train()
    for step in range(STEPS):
        made.zero_grad()
        loss = F.cross_entropy(net(images[step]), labels[step])
        loss.backward()
        made.step()
        losses.append(loss.item())
    return losses


with open("trajectories.h", "w") as out:
    out.write("/* Written by make_trajectories.py: PyTorch %s, f32 on the CPU. */\n" % torch.__version__.split("+")[0])
    for kind, shape, name in ((LeNet5, (1, 28, 28), "lenet5"), (ResNet20, (3, 32, 32), "resnet20")):
        for optimizer, batch in itertools.product(OPTIMIZERS, BATCHES):
            losses = run(kind, shape, name, optimizer, batch)
            print(name, optimizer, batch, losses[0], losses[-1])
            rows = [", ".join("%.9g" % v for v in losses[i:i + 5]) for i in range(0, STEPS, 5)]
            out.write("static const double %s_%s_%d[] = {\n    %s};\n" % (name, optimizer, batch, ",\n    ".join(rows)))
