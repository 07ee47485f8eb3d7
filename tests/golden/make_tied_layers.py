#!/usr/bin/python3
"""Records what PyTorch does with tied layers: gradients of the first step and weights after 5 steps of SGD.

Writes tied_layers.h: a convolution of several channels used twice, then a linear layer used three times, the third time without its bias.
SGD with momentum, and weight decay on weights only. Needs torch; made with torch 1.13.0. Run in this folder.
"""
import torch
import torch.nn.functional as F

BATCH, STEPS, FEATURES = 8, 5, 16

torch.manual_seed(3)
conv, fc = torch.nn.Conv2d(2, 2, 3, padding=1), torch.nn.Linear(FEATURES, FEATURES)
x = torch.randn(BATCH, 2, 2, 4)
labels = torch.randint(0, FEATURES, (BATCH,))
learned = {"conv_weight": conv.weight, "conv_bias": conv.bias, "fc_weight": fc.weight, "fc_bias": fc.bias}
optimizer = torch.optim.SGD([{"params": [conv.weight, fc.weight], "weight_decay": 0.05},
                             {"params": [conv.bias, fc.bias]}], 0.1, momentum=0.9)

with open("tied_layers.h", "w") as out:
    def write(name, tensor):
        numbers = ["%.9g" % v for v in tensor.detach().flatten().tolist()]
        rows = ["    " + ", ".join(numbers[i:i + 8]) for i in range(0, len(numbers), 8)]
        kind = "int64_t" if tensor.dtype == torch.int64 else "double" if tensor.dtype == torch.float64 else "float"
        out.write("static const %s tied_%s[] = {\n%s};\n" % (kind, name, ",\n".join(rows)))

    out.write("/* Written by make_tied_layers.py: PyTorch %s, f32 on the CPU. */\n" % torch.__version__.split("+")[0])
    out.write("enum { TIED_BATCH = %d, TIED_STEPS = %d, TIED_FEATURES = %d };\n" % (BATCH, STEPS, FEATURES))
    write("x", x)
    write("labels", labels)
    for name, parameter in learned.items():
        write(name + "_before", parameter)
    losses = []
    for step in range(STEPS):
        y = conv(F.relu(conv(x))).flatten(1)
        y = F.linear(F.relu(fc(F.relu(fc(y)))), fc.weight)
        loss = F.cross_entropy(y, labels)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            for name, parameter in learned.items():
                write(name + "_gradient", parameter.grad)
        optimizer.step()
        losses.append(loss.item())
    write("losses", torch.tensor(losses, dtype=torch.float64))
    for name, parameter in learned.items():
        write(name + "_after", parameter)
