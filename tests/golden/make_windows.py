#!/usr/bin/python3
"""Records what PyTorch does where gradients of several batches are summed before an update.

Writes windows.h: of LeNet-5 (from lenet5.safetensors) the losses of three windows of 64 + 64 + 17 samples and the norms
of the first one's gradients; of a small net with batch norm the losses, running statistics and parameters after two
windows of 5 + 5 + 3. Inputs come from the integer hash of make_trajectories.py, which tests/test_accumulate.c repeats.
Needs numpy and torch; made with torch 1.13.1. Run in this folder, after make_trajectories.py.
"""
import json
import struct

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def hashed(n):
    x = np.arange(n, dtype=np.uint64) & 0xFFFFFFFF
    for multiplier in (0x7FEB352D, 0x846CA68B):
        x ^= x >> np.uint64(16)
        x = (x * np.uint64(multiplier)) & np.uint64(0xFFFFFFFF)
    return (x ^ (x >> np.uint64(16))).astype(np.uint32)


def samples(count, pixels, classes):
    """Values in [-1, 1): half a pattern of the class, half noise."""
    labels = (hashed(count) % classes).astype(np.int64)
    noise = (hashed(count * pixels) >> 8).astype(np.float32) * np.float32(2.0 ** -24)
    pattern = ((labels[:, None] * 7919 + np.arange(pixels)[None, :] * 104729) % 251).astype(np.float32) / np.float32(251)
    return torch.from_numpy(noise.reshape(count, pixels) + pattern - np.float32(1)), torch.from_numpy(labels)


class LeNet5(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x.reshape(-1, 1, 28, 28))), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.bn1, self.fc2 = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
        with torch.no_grad():
            for p in (self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias):
                values = hashed(p.numel()).astype(np.float64) / 2.0 ** 32 - 0.5
                p.copy_(torch.from_numpy(values.astype(np.float32)).reshape(p.shape))

    def forward(self, x):
        return self.fc2(F.relu(self.bn1(self.fc1(x))))


def load(net, path):
    data = open(path, "rb").read()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    for name, entry in json.loads(data[8:start]).items():
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[start + begin:start + end], dtype=np.float16).astype(np.float32)
        net.state_dict()[name].copy_(torch.from_numpy(values).reshape(entry["shape"]))


def train(net, x, labels, optimizer, batches, windows, after):
    """Calls after(window) between a window's gradients and its update; returns the windows' mean losses."""
    losses, at, size = [], 0, sum(batches)
    net.train()
    for window in range(windows):
        optimizer.zero_grad()
        total = 0.0
        for batch in batches:
            loss = F.cross_entropy(net(x[at:at + batch]), labels[at:at + batch], reduction="sum") / size
            loss.backward()
            total += loss.item()
            at += batch
        after(window)
        optimizer.step()
        losses.append(total)
    return losses


def write(out, name, values):
    rows = [", ".join("%.9g" % v for v in values[i:i + 5]) for i in range(0, len(values), 5)]
    out.write("static const double %s[] = {\n    %s};\n" % (name, ",\n    ".join(rows)))


with open("windows.h", "w") as out:
    out.write("/* Written by make_windows.py: PyTorch %s, f32 on the CPU. */\n" % torch.__version__.split("+")[0])
    net, norms = LeNet5(), []
    load(net, "lenet5.safetensors")
    x, labels = samples(3 * 145, 784, 10)

    def note(window):
        if window == 0:
            norms.extend(p.grad.double().norm().item() for p in net.parameters())

    losses = train(net, x, labels, torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), [64, 64, 17], 3, note)
    write(out, "lenet5_window_losses", losses)
    write(out, "lenet5_gradient_norms", norms)
    net = Small()
    x, labels = samples(2 * 13, 3, 3)
    write(out, "small_window_losses", train(net, x, labels, torch.optim.SGD(net.parameters(), 0.5), [5, 5, 3], 2, lambda window: None))
    for name, tensor in net.state_dict().items():
        write(out, "small_" + name.replace(".", "_"), tensor.double().flatten().tolist())
