#!/usr/bin/python3
"""Records the names and shapes of PyTorch's state dicts for the networks of the zoo, in order.

Writes state_names.h: many "name dims;" a string, the last one 0, for LeNet-5, ResNet-20 (as in make_trajectories.py) and ResNet-18 and -50
with torchvision's module names. Checks the totals that torchvision publishes for the last two. Needs torch; made with
torch 1.13.0. Run in this folder.
"""
import torch.nn as nn


class LeNet5(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)


class Block(nn.Module):
    def __init__(self, inputs, width, stride, bottleneck):
        super().__init__()
        outputs = width * (4 if bottleneck else 1)
        kernels = (1, 3, 1) if bottleneck else (3, 3)
        widths = [inputs] + [width] * (len(kernels) - 1) + [outputs]
        for i, kernel in enumerate(kernels):
            setattr(self, f"conv{i + 1}", nn.Conv2d(widths[i], widths[i + 1], kernel, bias=False))
            setattr(self, f"bn{i + 1}", nn.BatchNorm2d(widths[i + 1]))
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    def __init__(self, width, stem, blocks, bottleneck, classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, stem, bias=False), nn.BatchNorm2d(width)
        channels = width
        for s, count in enumerate(blocks):
            stage = []
            for b in range(count):
                stage.append(Block(channels, width << s, 2 if s and b == 0 else 1, bottleneck))
                channels = (width << s) * (4 if bottleneck else 1)
            setattr(self, f"layer{s + 1}", nn.Sequential(*stage))
        self.fc = nn.Linear(channels, classes)


nets = {
    "lenet5": LeNet5(),
    "resnet20": ResNet(16, 3, (3, 3, 3), False, 10),
    "resnet18": ResNet(64, 7, (2, 2, 2, 2), False, 1000),
    "resnet50": ResNet(64, 7, (3, 4, 6, 3), True, 1000),
}
totals = {name: sum(p.numel() for p in net.parameters()) for name, net in nets.items()}
assert totals["resnet18"] == 11689512 and totals["resnet50"] == 25557032 and totals["lenet5"] == 61706

with open("state_names.h", "w") as out:
    out.write("/* Written by make_state_names.py: names and shapes of PyTorch's state dicts, and their learned numbers. */\n")
    for name, net in nets.items():
        words = [f"{k} {'x'.join(map(str, v.shape)) or '1'};" for k, v in net.state_dict().items()]
        lines, line = [], ""
        for word in words:
            if len(line) + len(word) > 110:
                lines.append(line)
                line = ""
            line += word
        lines.append(line)
        text = ",\n".join(f'    "{line}"' for line in lines)
        out.write(f"enum {{ {name}_weights = {totals[name]} }};\nstatic const char *const {name}_state[] = {{\n{text}, 0}};\n")
