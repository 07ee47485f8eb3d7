#!/usr/bin/python3
"""PyTorch peer benchmark: one workload per process, one line of JSON on stdout.

Workloads (random weights and data; throughput does not depend on the content):
  mlp       784-128-10                                      batch of 1x28x28
  lenet     conv5x5x6(pad 2)/pool/conv5x5x16/pool/120/84/10 batch of 1x28x28
  resnet20  CIFAR ResNet-20 with BatchNorm, 1x1 projections batch of 3x32x32
  resnet18  ImageNet's, 1000 classes                        batch of 3x64x64
  resnet50  ImageNet's, 1000 classes, stride in the 3x3     batch of 3x224x224

Modes: train = forward + backward + optimiser step; infer = forward in eval mode, no grad
       (use --batch 1 for latency).

On a GPU (--device cuda) batches lie ready in its memory, cuDNN picks its algorithms by trial, f32 is computed in f32
unless --tf32 1. --variant: eager; graph: the whole step as one CUDA graph; compile: torch.compile.

Examples:
  torch_train.py --model resnet20 --batch 64 --threads 2 --seconds 6
  torch_train.py --model lenet --batch 1 --mode infer
  torch_train.py --model resnet50 --batch 64 --channels-last 1 --device cuda --variant graph

JSON keys: rate (median over windows, in `unit`), rate_best, rate_per_cpu_s (work per second of CPU time: with
--threads 1 it hardly feels other load on the machine; with 2 threads spinning counts), ms_per_step, lat_us_p50/p99/best (infer
on the CPU), host_us (a step as the host sees it: on a GPU, until all is asked for), import_s, first_step_s (process start
to the end of the first step), peak_rss_mb, device_mb (most memory of a GPU held), loss_first, loss_last.
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
p.add_argument("--model", choices=["mlp", "lenet", "resnet20", "resnet18", "resnet50"], required=True)
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
p.add_argument("--bf16", type=int, choices=[0, 1], default=0, help="autocast to bfloat16")
p.add_argument("--device", default="cpu", help="cpu, cuda or cuda:0")
p.add_argument("--variant", choices=["eager", "graph", "compile"], default="eager", help="graph needs --device cuda")
p.add_argument("--tf32", type=int, choices=[0, 1], default=0, help="products of f32 in TF32 on a GPU")
p.add_argument("--malloc", choices=["default", "keep"], default="default",
               help="keep: glibc never gives memory back (mallopt), so activations do not page-fault every step")
p.add_argument("--wait", choices=["active", "passive"], default="active", help="OMP_WAIT_POLICY")
p.add_argument("--isa", choices=["default", "avx2", "avx512"], default="default", help="ATEN_CPU_CAPABILITY")
p.add_argument("--openblas-core", default="", help="OPENBLAS_CORETYPE, for processors that this OpenBLAS does not know: "
               "OPENBLAS_VERBOSE=2 tells which kernels it took")
p.add_argument("--ftz", type=int, choices=[0, 1], default=0, help="torch.set_flush_denormal (default off, as PyTorch is)")
a = p.parse_args()

# Before the import: OpenBLAS (pthread) does not follow torch.set_num_threads, and a preset OPENBLAS_CORETYPE halves it.
for k in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(k, None)
if a.openblas_core:
    os.environ["OPENBLAS_CORETYPE"] = a.openblas_core
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

device = torch.device(a.device)
gpu = device.type == "cuda"
if a.variant == "graph" and not gpu:
    p.error("--variant graph needs --device cuda")
wait = torch.cuda.synchronize if gpu else lambda: None
if gpu:
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = bool(a.tf32)
torch.set_num_threads(a.threads)
torch.backends.mkldnn.flags(enabled=bool(a.mkldnn)).__enter__()
torch.set_flush_denormal(bool(a.ftz))
torch.manual_seed(1)


def conv_bn(cin, cout, size, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, size, stride, size // 2, bias=False), nn.BatchNorm2d(cout))


class Block(nn.Module):
    """Two 3x3 convolutions, or 1x1, 3x3, 1x1 where `wide` is above the width; a shortcut around them."""

    def __init__(self, cin, cout, stride, wide):
        super().__init__()
        if wide == cout:
            parts = [conv_bn(cin, cout, 3, stride), nn.ReLU(inplace=True), conv_bn(cout, cout, 3)]
        else:
            parts = [conv_bn(cin, cout, 1), nn.ReLU(inplace=True), conv_bn(cout, cout, 3, stride), nn.ReLU(inplace=True),
                     conv_bn(cout, wide, 1)]
        self.body = nn.Sequential(*parts)
        self.shortcut = conv_bn(cin, wide, 1, stride) if stride != 1 or cin != wide else nn.Identity()

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def resnet(stem, widths, blocks, expansion, classes):
    layers, cin = list(stem), widths[0]
    for stage, (c, count) in enumerate(zip(widths, blocks)):
        for i in range(count):
            layers.append(Block(cin, c, 2 if stage and i == 0 else 1, c * expansion))
            cin = c * expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, classes))


def small_stem():
    return conv_bn(3, 16, 3), nn.ReLU(inplace=True)


def large_stem():
    return conv_bn(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)


def lenet():
    return nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                         nn.Conv2d(6, 16, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(400, 120), nn.ReLU(inplace=True), nn.Linear(120, 84),
                         nn.ReLU(inplace=True), nn.Linear(84, 10))


B = a.batch
unit_per_step = B
WIDTHS = (64, 128, 256, 512)
make, shape = {
    "mlp": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(inplace=True), nn.Linear(128, 10)), (1, 28, 28)),
    "lenet": (lenet, (1, 28, 28)),
    "resnet20": (lambda: resnet(small_stem(), (16, 32, 64), (3, 3, 3), 1, 10), (3, 32, 32)),
    "resnet18": (lambda: resnet(large_stem(), WIDTHS, (2, 2, 2, 2), 1, 1000), (3, 64, 64)),
    "resnet50": (lambda: resnet(large_stem(), WIDTHS, (3, 4, 6, 3), 4, 1000), (3, 224, 224)),
}[a.model]
net = make().to(device)
n_img = max(512 if a.model == "resnet50" else 4096, B)
labels = torch.randint(0, 10, (n_img,))
proto = torch.randint(0, 256, (10,) + shape)
pix = (proto[labels] // 2 + torch.randint(0, 128, (n_img,) + shape)).to(torch.uint8)
n_pool = n_img // B
unit = "images/s"
fmt = torch.channels_last if a.channels_last else torch.contiguous_format
if a.data == "resident":
    n_pool = min(n_pool, 8)
    xs = [(pix[i * B:(i + 1) * B].float() / 255 - 0.5).to(device).contiguous(memory_format=fmt) for i in range(n_pool)]
    ys = [labels[i * B:(i + 1) * B].to(device) for i in range(n_pool)]

    def batch(i):
        return xs[i % n_pool], ys[i % n_pool]
else:
    pix, labels = pix.to(device), labels.to(device)

    def batch(i):
        k = torch.randint(0, n_img, (B,), device=device)
        return (pix[k].float() / 255 - 0.5).contiguous(memory_format=fmt), labels[k]
loss_fn = F.cross_entropy

if a.channels_last:
    net = net.to(memory_format=torch.channels_last)
run_net = torch.compile(net) if a.variant == "compile" else net
params = list(net.parameters())
n_params = sum(q.numel() for q in params)

if a.mode == "train":
    net.train()
    opt = {"sgd": lambda: torch.optim.SGD(params, a.lr, momentum=0.9),
           "adam": lambda: torch.optim.Adam(params, a.lr), "adamw": lambda: torch.optim.AdamW(params, a.lr)}[a.opt]()

    def work(x, t):
        opt.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=bool(a.bf16)):
            loss = loss_fn(run_net(x), t)
        loss.backward()
        opt.step()
        return loss
else:
    net.eval()

    @torch.no_grad()
    def work(x, t):
        with torch.autocast(device.type, torch.bfloat16, enabled=bool(a.bf16)):
            return run_net(x)

if a.variant == "graph":  # warm-up on a stream of its own, then the step is captured over fixed inputs
    x_fixed, t_fixed = [v.clone() for v in batch(0)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work(x_fixed, t_fixed)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work(x_fixed, t_fixed)

    def step(i):
        x, t = batch(i)
        x_fixed.copy_(x)
        t_fixed.copy_(t)
        graph.replay()
        return result
else:
    def step(i):
        return work(*batch(i))

first = step(0)
wait()
loss_first = float(first.detach()) if a.mode == "train" else None
first_step_s = process_age()

i, end = 1, time.perf_counter() + a.warmup
while time.perf_counter() < end:
    last = step(i)
    i += 1
    wait()
rates, cpu_rates, lat, steps, win = [], [], [], [], a.seconds / a.windows
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
        if gpu and n % 64 == 0:  # or the host runs ahead by as much as the queue holds
            wait()
            now = time.perf_counter()
    wait()
    now = time.perf_counter()
    steps.append((now - s) / n)
    rates.append(n * unit_per_step / (now - s))
    cpu_rates.append(n * unit_per_step / max(time.process_time() - c, 1e-9))
lat.sort()
ms_per_step = 1e3 * (statistics.median(steps) if gpu else lat[len(lat) // 2])
r = {"peer": "pytorch-" + torch.__version__, "device": a.device, "variant": a.variant, "tf32": a.tf32,
     "device_name": torch.cuda.get_device_name() if gpu else "", "host_us": round(1e6 * lat[len(lat) // 2], 1),
     "device_mb": round(torch.cuda.max_memory_reserved() / 1e6, 1) if gpu else 0.0,
     "model": a.model, "mode": a.mode, "batch": B, "threads": a.threads,
     "channels_last": a.channels_last, "mkldnn": a.mkldnn, "bf16": a.bf16, "ftz": a.ftz, "malloc": a.malloc, "wait": a.wait, "opt": a.opt if a.mode == "train" else None,
     "data": a.data, "rate": round(statistics.median(rates), 1), "rate_best": round(max(rates), 1),
     "rate_per_cpu_s": round(statistics.median(cpu_rates), 1), "unit": unit,
     "ms_per_step": round(ms_per_step, 4), "lat_us_p50": round(1e6 * lat[len(lat) // 2], 1),
     "lat_us_p99": round(1e6 * lat[int(len(lat) * 0.99)], 1), "lat_us_best": round(1e6 * lat[0], 1), "params": n_params,
     "import_s": round(import_s, 3), "first_step_s": round(first_step_s, 3),
     "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
     "loss_first": loss_first, "loss_last": float(last.detach()) if a.mode == "train" else None,
     "cpu_capability": a.isa if a.isa != "default" else os.environ.get("ATEN_CPU_CAPABILITY", "default"), "load1": round(os.getloadavg()[0], 2)}
print(json.dumps(r))
