#!/usr/bin/python3
"""PyTorch peer benchmark: one workload per process, one line of JSON on stdout.

Workloads (all f32, random weights; throughput does not depend on the content):
  mlp       784-128-10                                     batch of 1x28x28
  lenet     conv5x5x6(pad 2)/pool/conv5x5x16/pool/120/84/10 batch of 1x28x28
  resnet20  CIFAR ResNet-20 with BatchNorm, 1x1 projections batch of 3x32x32

Modes: train = forward + backward + optimiser step; infer = forward in eval mode, no grad
       (use --batch 1 for latency).

Examples:
  torch_train.py --model resnet20 --batch 64 --threads 2 --seconds 6
  torch_train.py --model lenet --batch 1 --mode infer
  torch_train.py --model resnet20 --batch 64 --channels-last 1

JSON keys: rate (median over windows, in `unit`), rate_best, rate_per_cpu_s (work per second of CPU time: with
--threads 1 it hardly feels other load on the machine; with 2 threads spinning counts), ms_per_step, lat_us_p50/p99 (infer),
import_s, first_step_s (process start to the end of the first step), peak_rss_mb, loss_first, loss_last.
"""
import argparse, json, os, resource, statistics, sys, time


def process_age():
    """Seconds since this process was started (from /proc, so the interpreter start counts)."""
    with open("/proc/self/stat") as f:
        start = int(f.read().rsplit(")", 1)[1].split()[19])
    with open("/proc/uptime") as f:
        up = float(f.read().split()[0])
    return up - start / os.sysconf("SC_CLK_TCK")


p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--model", choices=["mlp", "lenet", "resnet20"], required=True)
p.add_argument("--mode", choices=["train", "infer"], default="train")
p.add_argument("--batch", type=int, default=64)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--seconds", type=float, default=5.0, help="measured time, after the warm-up")
p.add_argument("--warmup", type=float, default=1.0, help="seconds of warm-up")
p.add_argument("--windows", type=int, default=10, help="the measured time is cut into this many windows")
p.add_argument("--opt", choices=["sgd", "adam", "adamw"], default="sgd", help="sgd has momentum 0.9")
p.add_argument("--lr", type=float, default=0.01)
p.add_argument("--channels-last", type=int, choices=[0, 1], default=0)
p.add_argument("--mkldnn", type=int, choices=[0, 1], default=1)
p.add_argument("--data", choices=["resident", "u8"], default="resident",
               help="resident: f32 batches lie ready; u8: gather random uint8 images and normalise each step")
p.add_argument("--bf16", type=int, choices=[0, 1], default=0, help="CPU autocast to bfloat16")
p.add_argument("--malloc", choices=["default", "keep"], default="default",
               help="keep: glibc never gives memory back (mallopt), so activations do not page-fault every step")
p.add_argument("--wait", choices=["active", "passive"], default="active", help="OMP_WAIT_POLICY")
p.add_argument("--isa", choices=["default", "avx2", "avx512"], default="default", help="ATEN_CPU_CAPABILITY")
p.add_argument("--ftz", type=int, choices=[0, 1], default=0, help="torch.set_flush_denormal (default off, as PyTorch is)")
a = p.parse_args()

# Before the import: OpenBLAS (pthread) does not follow torch.set_num_threads, and a preset OPENBLAS_CORETYPE halves it.
for k in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(k, None)
os.environ.update(OMP_NUM_THREADS=str(a.threads), OPENBLAS_NUM_THREADS=str(a.threads), OMP_WAIT_POLICY=a.wait)
if a.isa != "default":
    os.environ["ATEN_CPU_CAPABILITY"] = a.isa
if a.malloc == "keep":
    import ctypes
    libc = ctypes.CDLL(None)
    libc.mallopt(-4, 0)           # M_MMAP_MAX: no mmap for big blocks
    libc.mallopt(-1, 2 ** 31 - 1)  # M_TRIM_THRESHOLD
t0 = time.perf_counter()
import torch
import torch.nn as nn
import torch.nn.functional as F
import_s = time.perf_counter() - t0

torch.set_num_threads(a.threads)
torch.backends.mkldnn.flags(enabled=bool(a.mkldnn)).__enter__()
torch.set_flush_denormal(bool(a.ftz))
torch.manual_seed(1)


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.c1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(cout)
        self.c2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(cout)
        self.proj = None
        if stride != 1 or cin != cout:
            self.proj = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)), inplace=True)
        y = self.b2(self.c2(y))
        return F.relu(y + (x if self.proj is None else self.proj(x)), inplace=True)


def resnet20():
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    cin = 16
    for stage, c in enumerate((16, 32, 64)):
        for i in range(3):
            layers.append(Block(cin, c, 2 if stage and i == 0 else 1))
            cin = c
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def lenet():
    return nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                         nn.Conv2d(6, 16, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(400, 120), nn.ReLU(inplace=True), nn.Linear(120, 84),
                         nn.ReLU(inplace=True), nn.Linear(84, 10))


B = a.batch
unit_per_step = B
shape = (3, 32, 32) if a.model == "resnet20" else (1, 28, 28)
net = {"mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(inplace=True), nn.Linear(128, 10)),
       "lenet": lenet, "resnet20": resnet20}[a.model]()
n_img = max(4096, B)
labels = torch.randint(0, 10, (n_img,))
proto = torch.randint(0, 256, (10,) + shape)
pix = (proto[labels] // 2 + torch.randint(0, 128, (n_img,) + shape)).to(torch.uint8)
n_pool = n_img // B
unit = "images/s"
fmt = torch.channels_last if a.channels_last else torch.contiguous_format
if a.data == "resident":
    xs = [(pix[i * B:(i + 1) * B].float() / 255 - 0.5).contiguous(memory_format=fmt) for i in range(n_pool)]
    ys = [labels[i * B:(i + 1) * B] for i in range(n_pool)]

    def batch(i):
        return xs[i % n_pool], ys[i % n_pool]
else:
    def batch(i):
        k = torch.randint(0, n_img, (B,))
        return (pix[k].float() / 255 - 0.5).contiguous(memory_format=fmt), labels[k]
loss_fn = F.cross_entropy

if a.channels_last:
    net = net.to(memory_format=torch.channels_last)
params = list(net.parameters())
n_params = sum(q.numel() for q in params)

if a.mode == "train":
    net.train()
    opt = {"sgd": lambda: torch.optim.SGD(params, a.lr, momentum=0.9),
           "adam": lambda: torch.optim.Adam(params, a.lr), "adamw": lambda: torch.optim.AdamW(params, a.lr)}[a.opt]()

    def step(i):
        x, t = batch(i)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(a.bf16)):
            loss = loss_fn(net(x), t)
        loss.backward()
        opt.step()
        return loss
else:
    net.eval()

    @torch.no_grad()
    def step(i):
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(a.bf16)):
            return net(batch(i)[0])

first = step(0)
loss_first = float(first.detach()) if a.mode == "train" else None
first_step_s = process_age()

i, end = 1, time.perf_counter() + a.warmup
while time.perf_counter() < end:
    last = step(i)
    i += 1
rates, cpu_rates, lat, win = [], [], [], a.seconds / a.windows
last = first
t_all = time.perf_counter()
for _ in range(a.windows):
    if len(rates) >= 2 and time.perf_counter() - t_all > 1.3 * a.seconds:
        break  # slow steps: fewer windows
    n, s, c = 0, time.perf_counter(), time.process_time()
    now = s
    while now - s < win:
        last = step(i)
        i += 1
        n += 1
        t, now = now, time.perf_counter()
        lat.append(now - t)
    rates.append(n * unit_per_step / (now - s))
    cpu_rates.append(n * unit_per_step / max(time.process_time() - c, 1e-9))
lat.sort()
r = {"peer": "pytorch-" + torch.__version__, "model": a.model, "mode": a.mode, "batch": B, "threads": a.threads,
     "channels_last": a.channels_last, "mkldnn": a.mkldnn, "bf16": a.bf16, "ftz": a.ftz, "malloc": a.malloc, "wait": a.wait, "opt": a.opt if a.mode == "train" else None,
     "data": a.data, "rate": round(statistics.median(rates), 1), "rate_best": round(max(rates), 1),
     "rate_per_cpu_s": round(statistics.median(cpu_rates), 1), "unit": unit,
     "ms_per_step": round(1e3 * lat[len(lat) // 2], 4), "lat_us_p50": round(1e6 * lat[len(lat) // 2], 1),
     "lat_us_p99": round(1e6 * lat[int(len(lat) * 0.99)], 1), "params": n_params,
     "import_s": round(import_s, 3), "first_step_s": round(first_step_s, 3),
     "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
     "loss_first": loss_first, "loss_last": float(last.detach()) if a.mode == "train" else None,
     "cpu_capability": a.isa if a.isa != "default" else os.environ.get("ATEN_CPU_CAPABILITY", "default"), "load1": round(os.getloadavg()[0], 2)}
print(json.dumps(r))
