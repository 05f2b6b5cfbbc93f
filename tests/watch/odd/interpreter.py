"""The settings of the interpreter and of its packages, before torch, after it, in training and at the end."""
import builtins, decimal, gc, locale, logging, os, signal, sys, threading, time, warnings

def show(where):
    print(where, sys.gettrace(), sys.getprofile(), sys.getrecursionlimit(), sys.getswitchinterval(), sys.flags)
    print(sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__, sys.displayhook is sys.__displayhook__)
    print(threading.excepthook is threading.__excepthook__, threading.active_count(), threading.gettrace(), threading.stack_size())
    print(gc.isenabled(), gc.get_threshold(), len(gc.callbacks), gc.get_freeze_count(), gc.get_debug())
    print([(number.name, str(signal.getsignal(number))) for number in sorted(signal.valid_signals()) if hasattr(number, "name") and signal.getsignal(number) != signal.SIG_DFL])
    print(len(warnings.filters), warnings.showwarning.__module__, logging.root.handlers, logging.root.level, decimal.getcontext())
    print(locale.setlocale(locale.LC_ALL), os.getcwd() == start, os.umask(0o22), sorted(os.environ), time.tzname, sorted(vars(builtins)))
    print(len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), os.open("/dev/null", os.O_RDONLY))
    print(type(sys.stdout), sys.stdout.encoding, sys.stdout.line_buffering, sys.stdin.fileno(), sys.getdefaultencoding())
    if "torch" in globals():
        print(torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_dtype(), torch.get_default_device(), torch.is_anomaly_enabled())
        print(torch.are_deterministic_algorithms_enabled(), torch._C._len_torch_function_stack())
        print(numpy.geterr(), sorted(numpy.get_printoptions()), torch.autograd._profiler_enabled(), torch.get_float32_matmul_precision())

start = os.getcwd()
show("begin")
import numpy
import torch
from training import digest, small, train
show("torch")
model = small()
show("model")
hooks = [model.register_forward_hook(lambda *_: show("forward")), model[0].weight.register_hook(lambda gradient: show("backward"))]
train(model, num=4)
for hook in hooks:
    hook.remove()
train(model)
show("end")
